// Everything by a few letters: chats by their words, models, views, and what can be done.
import { html, useRef, useState } from "./vendor/htm-preact.js";
import * as chat from "./chats.js";
import { Icon } from "./icons.js";
import { NEW } from "./chats.js";
import { VIEWS, go } from "./places.js";
import { Sheet } from "./sheet.js";
import { found } from "./talklist.js";
import { t } from "./texts.js";
import { THEMES, setTheme } from "./theme.js";

const MOST = 40;

// {icon, text, find, act} of what there is, the likeliest first.
function entries(words, status) {
  const fixed = [{ icon: "square-pen", text: t("newChat"), act: () => go(`chat/${NEW}`) },
    ...VIEWS.map((view) => ({ icon: "chevron-right", text: t("goTo", { view: t(view) }), act: () => go(view) })),
    ...THEMES.map((name) => ({ icon: "palette", text: t("themeNamed", { name: t(`theme_${name}`) }), act: () => setTheme(name) })),
    ...status.models.map((one) => ({ icon: "boxes", text: t("useModel", { model: one.model }),
      act: () => { chat.chooseModel(one.model); go("chat"); } }))];
  const chats = chat.chats.all.map((talk) => ({ icon: "message-square", text: talk.title,
    find: words ? found(talk, words) : null, act: () => go(`chat/${talk.id}`) }));
  if (!words) return [...fixed.slice(0, 1), ...chats.slice(0, 6), ...fixed.slice(1)];
  return [...fixed.filter((one) => one.text.toLowerCase().includes(words)),
    ...chats.filter((one) => one.find)].slice(0, MOST);
}

export function Palette({ status, onClose }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef();
  const all = entries(text.trim().toLowerCase(), status);
  const run = (entry) => { onClose(); entry.act(); };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && all.length) {
      event.preventDefault();
      const next = (at + step + all.length) % all.length;
      setAt(next);
      list.current.children[next].scrollIntoView({ block: "nearest" });
    }
    if (event.key === "Enter" && all[at]) { event.preventDefault(); run(all[at]); }
  };
  return html`<${Sheet} title=${t("palette")} kind="palette" onClose=${onClose}><div class="searchbox"><${Icon} name="search" />
      <input type="search" autofocus role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${`found-${at}`}
        aria-label=${t("palette")} placeholder=${t("palettePlaceholder")} value=${text} onKeyDown=${onKey}
        onInput=${(event) => { setText(event.target.value); setAt(0); }} /></div>
    <ul class="picks" id="found" role="listbox" aria-label=${t("palette")} ref=${list}>${all.map((entry, index) => html`<li id=${`found-${index}`} role="option"
      aria-selected=${index === at} onClick=${() => run(entry)} onPointerMove=${() => setAt(index)}><${Icon} name=${entry.icon} />
      <span class="grow"><b>${entry.text}</b>${entry.find && html`<small class="dim">${entry.find.before}<mark>${entry.find.hit}</mark>${entry.find.after}</small>`}</span></li>`)}</ul>
    ${!all.length && html`<p class="dim none">${t("nothingFound")}</p>`}</${Sheet}>`;
}
