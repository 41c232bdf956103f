import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { keepOnMachine } from "./chats.js";
import { Icon } from "./icons.js";
import { Keys } from "./keys.js";
import { Network } from "./network.js";
import { Confirm } from "./sheet.js";
import { isKept } from "./sync.js";
import { LANGUAGES, chooseLanguage, chosenLanguage, t } from "./texts.js";
import { THEMES, setTheme, theme } from "./theme.js";

const GROUPS = { http: "globe", models: "boxes", engine: "cpu", model: "wrench", hub: "download", calibration: "gauge",
  cluster: "layers", log: "scroll-text", service: "activity", power: "zap" };
// Where a slider serves better than a number: lowest and highest.
const RANGES = { "engine.parallel": [0, 64], "engine.draft_tokens": [0, 16], "engine.top_k_experts": [0, 32],
  "http.max_in_flight": [1, 1024], "models.max_loaded": [0, 16] };
const HINTS = { size: "auto, 8GB, 60%", seconds: "90s, 30m, 2h" };
const THEME_ICONS = { system: "monitor", light: "sun", dark: "moon" };

const ACRONYMS = /\b(api|ca|cpu|gpu|http|https|kv|ssd|tls)\b/gi;

const nameOf = (key) => {
  const words = key.slice(key.lastIndexOf(".") + 1).replaceAll("_", " ");
  return (words[0].toUpperCase() + words.slice(1)).replace(ACRONYMS, (word) => word.toUpperCase());
};

// Takes over the saved value when that changes, and nothing while somebody writes: the answer to
// an earlier save may come late.
function Input({ value, onSet, ...rest }) {
  const box = useRef();
  useLayoutEffect(() => { box.current.value = value; }, [value]);
  return html`<input ref=${box} ...${rest} onChange=${(event) => onSet(event.target.value)} />`;
}

// The field that the type of an option asks for.
function Field({ entry, onSet }) {
  const { key, value, type = "" } = entry;
  const given = (event) => onSet(event.target.value);
  if (type === "true or false") {
    return html`<input id=${key} type="checkbox" role="switch" class="switch" checked=${value === "true"}
      onChange=${(event) => onSet(String(event.target.checked))} />`;
  }
  if (type.includes(" | ")) {
    return html`<select id=${key} value=${value} onChange=${given}>${type.split(" | ").map((choice) => html`
      <option value=${choice === '""' ? "" : choice} selected=${value === (choice === '""' ? "" : choice)}>${choice === '""' ? t("auto") : choice}</option>`)}</select>`;
  }
  const range = RANGES[key];
  if (range && !Number.isNaN(Number(value))) {
    return html`<span class="ranged"><${Input} type="range" aria-label=${t("sliderOf", { name: key })} min=${range[0]} max=${range[1]} value=${value} onSet=${onSet} />
      <${Input} id=${key} type="number" min=${range[0]} value=${value} onSet=${onSet} /></span>`;
  }
  if (type === "integer" || type === "number") return html`<${Input} id=${key} type="number" step=${type === "integer" ? 1 : "any"} value=${value} onSet=${onSet} />`;
  const hint = type.includes("GB") ? HINTS.size : type.startsWith("seconds") ? HINTS.seconds : "";
  return html`<${Input} id=${key} class=${hint ? "" : "long"} value=${value} placeholder=${hint} title=${hint} onSet=${onSet} />`;
}

function Entry({ entry, onChanged }) {
  const [note, setNote] = useState("");
  const change = async (request) => {
    try {
      await call("set_config", { key: entry.key, ...request });
      setNote(t(entry.needs_restart ? "savedAfterRestart" : "saved"));
    } catch (error) { setNote(error.message); }
    onChanged();
  };
  return html`<div class="entry"><div class="grow"><label for=${entry.key}>${nameOf(entry.key)} <code class="dim">${entry.key}</code></label>
      <p class="dim">${entry.description}</p>${note && html`<p role="status" class="said">${note}</p>`}</div>
    <div class="value"><${Field} entry=${entry} onSet=${(value) => change({ value })} />
      <small class="dim">${t("from", { origin: entry.origin })}${entry.origin === "file" && html` · <button class="link"
        aria-label=${t("resetNamed", { name: entry.key })} onClick=${() => change({ unset: true })}>${t("reset")}</button>`}</small></div></div>`;
}

function Appearance() {
  const [chosen, setChosen] = useState(theme());
  const [titles, setTitles] = useState(localStorage.getItem("titles") === "model");
  const choose = (name) => { setTheme(name); setChosen(name); };
  const write = ({ target }) => { localStorage.setItem("titles", target.checked ? "model" : ""); setTitles(target.checked); };
  return html`<section class="card" id="group-page"><h2><${Icon} name="palette" />${t("appearance")}</h2>
    <div class="entry"><div class="grow"><b>${t("theme")}</b><p class="dim">${t("themeText")}</p></div>
      <div class="segments" role="group" aria-label=${t("theme")}>${THEMES.map((name) => html`<button aria-pressed=${name === chosen}
        onClick=${() => choose(name)}><${Icon} name=${THEME_ICONS[name]} />${t(`theme_${name}`)}</button>`)}</div></div>
    <div class="entry"><div class="grow"><label for="language">${t("language")}</label><p class="dim">${t("languageText")}</p></div>
      <select id="language" onChange=${(event) => chooseLanguage(event.target.value)}><option value="" selected=${!chosenLanguage()}>${t("theme_system")}</option>
        ${Object.entries(LANGUAGES).map(([tag, name]) => html`<option value=${tag} lang=${tag} selected=${chosenLanguage() === tag}>${name}</option>`)}</select></div>
    <div class="entry"><div class="grow"><label for="titles">${t("modelTitles")}</label><p class="dim">${t("modelTitlesText")}</p></div>
      <input id="titles" type="checkbox" role="switch" class="switch" checked=${titles} onChange=${write} /></div><${KeepChats} /></section>`;
}

// Off until it is wanted; off again deletes what the machine keeps.
function KeepChats() {
  const [on, setOn] = useState(isKept());
  const [asked, setAsked] = useState(false);
  const [error, setError] = useState("");
  const turn = async (wanted) => {
    try { await keepOnMachine(wanted); setError(""); } catch (failure) { setError(failure.message); }
    setOn(isKept());
  };
  const toggle = (event) => {
    if (event.target.checked) turn(true);
    else { setAsked(true); setOn(true); event.target.checked = true; }
  };
  return html`<div class="entry"><div class="grow"><label for="keep-chats">${t("keepChats")}</label><p class="dim">${t("keepChatsText")}</p>
      ${error && html`<p class="error" role="alert">${error}</p>`}</div>
    <input id="keep-chats" type="checkbox" role="switch" class="switch" checked=${on} onChange=${toggle} />
    ${asked && html`<${Confirm} act=${t("deleteKept")} text=${t("deleteKeptQuestion")} onDone=${() => turn(false)} onCancel=${() => setAsked(false)} />`}</div>`;
}

function Group({ name, entries, onChanged }) {
  return html`<section class="card" id=${`group-${name}`}><h2><${Icon} name=${GROUPS[name] || "settings"} />${name in GROUPS ? t(`group_${name}`) : name}</h2>
    ${entries.map((entry) => html`<${Entry} key=${entry.key} entry=${entry} onChanged=${onChanged} />`)}</section>`;
}

function Options({ status }) {
  const [reply, setReply] = useState({ entries: [], path: "" });
  const [error, setError] = useState("");
  const [filter, setFilter] = useState("");
  const ask = () => call("get_config").then((found) => { setReply(found); setError(""); })
    .catch((failure) => setError(failure.message));
  useEffect(() => { if (status.link !== "away") ask(); }, [status.link]);
  const shown = reply.entries.filter((entry) => `${entry.key} ${entry.description}`.toLowerCase()
    .includes(filter.toLowerCase()));
  const groups = Map.groupBy(shown, (entry) => entry.key.split(".")[0]);
  const jump = (name) => document.getElementById(`group-${name}`)?.scrollIntoView({ behavior: "smooth" });
  return html`<div class="settings-page"><nav class="jumps" aria-label=${t("groups")}><button onClick=${() => jump("page")}><${Icon} name="palette" />${t("appearance")}</button>
      ${[...groups.keys()].map((name) => html`<button onClick=${() => jump(name)}><${Icon} name=${GROUPS[name] || "settings"} />${name in GROUPS ? t(`group_${name}`) : name}</button>`)}</nav>
    <div class="grow"><div class="row head"><div class="searchbox grow"><${Icon} name="search" /><input type="search" aria-label=${t("filterSettings")}
      placeholder=${t("filterSettings")} onInput=${(event) => setFilter(event.target.value)} /></div></div>
    ${error && html`<p class="error notice" role="alert">${error}</p>`}
    ${!filter && html`<${Appearance} />`}
    ${[...groups].map(([name, entries]) => html`<${Group} key=${name} name=${name} entries=${entries} onChanged=${ask} />`)}
    <p class="dim path">${reply.path}</p></div></div>`;
}

const PAGES = { options: Options, keys: Keys, network: Network };

export function Settings({ status }) {
  const [page, setPage] = useState("options");
  const Page = PAGES[page];
  return html`<div class="row head"><h1>${t("settings")}</h1><div class="segments" role="group" aria-label=${t("settingsPages")}>
    ${Object.keys(PAGES).map((name) => html`<button aria-pressed=${name === page}
      onClick=${() => setPage(name)}>${t(`page_${name}`)}</button>`)}</div></div><${Page} status=${status} />`;
}
