// Every text of the page, in the language of its reader. `t(id, {name})` fills in `{name}`; of
// "one|more" the first is taken where a language counts `n` as one.
import en from "./texts/en.js";

export const LANGUAGES = { en: "English", de: "Deutsch", fr: "Français", es: "Español",
  pt: "Português", ja: "日本語", ko: "한국어", zh: "中文" };
const KEY = "language";

let table = en;
let plural = new Intl.PluralRules("en");

export const chosenLanguage = () => localStorage.getItem(KEY) || "";

export const language = () => [chosenLanguage(), ...navigator.languages.map((tag) => tag.slice(0, 2))]
  .find((tag) => tag in LANGUAGES) || "en";

export function t(id, values = {}) {
  const text = table[id] ?? en[id] ?? id;
  const forms = text.split("|");
  const form = forms.length > 1 && plural.select(values.n) !== "one" ? forms[1] : forms[0];
  return form.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

// Before anything is drawn; without its file the page speaks English.
export async function loadTexts() {
  const tag = language();
  document.documentElement.lang = tag;
  if (tag === "en") return;
  try {
    table = (await import(`./texts/${tag}.js`)).default;
    plural = new Intl.PluralRules(tag);
  } catch { document.documentElement.lang = "en"; }
}

export function chooseLanguage(tag) {
  if (tag) localStorage.setItem(KEY, tag); else localStorage.removeItem(KEY);
  location.reload();
}
