// The chats of this browser by day, found again by their words, and their way out of it and back.
import { html, useState } from "./vendor/htm-preact.js";
import * as chat from "./chats.js";
import { Icon, IconButton } from "./icons.js";
import { Sheet } from "./sheet.js";
import { t } from "./texts.js";

const DAY_MS = 86_400_000;

function download(all) {
  const link = document.createElement("a");
  const text = JSON.stringify({ conversations: all }, null, 1);
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "swiftlm-conversations.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

const AROUND = 28; // characters shown on each side of a find

// The title or the first message that holds the words: {before, hit, after}, or undefined.
export function found(talk, words) {
  for (const text of [talk.title, ...talk.messages.map((one) => one.text || "")]) {
    const at = text.toLowerCase().indexOf(words);
    if (at >= 0) {
      return { before: (at > AROUND ? "…" : "") + text.slice(Math.max(0, at - AROUND), at),
        hit: text.slice(at, at + words.length), after: text.slice(at + words.length, at + words.length + AROUND) };
    }
  }
  return undefined;
}

// [name, chats] of each part of the list; a chat belongs to the day of its last change.
function grouped(all) {
  const today = new Date().setHours(0, 0, 0, 0);
  const nameOf = ({ pinned, at }) => {
    if (pinned) return t("pinned");
    if (at >= today) return t("today");
    if (at >= today - DAY_MS) return t("yesterday");
    if (at >= today - 7 * DAY_MS) return t("lastWeek");
    return new Date(at).toLocaleDateString(document.documentElement.lang, { month: "long", year: "numeric" });
  };
  const groups = new Map();
  for (const talk of [...all].sort((a, b) => Boolean(b.pinned) - Boolean(a.pinned))) {
    const name = nameOf(talk);
    groups.set(name, [...(groups.get(name) || []), talk]);
  }
  return [...groups];
}

function Row({ talk, isCurrent, find, onOpen }) {
  const [renaming, setRenaming] = useState(false);
  if (renaming) {
    const done = (event) => { chat.rename(talk, event.target.value); setRenaming(false); };
    const onKey = (event) => {
      if (event.key === "Enter") event.target.blur();
      if (event.key === "Escape") { event.stopPropagation(); event.target.value = talk.title; event.target.blur(); }
    };
    return html`<li><input class="rename" autofocus ref=${(box) => box?.focus()} value=${talk.title} maxlength="200"
      aria-label=${t("nameOfChat")} onKeyDown=${onKey} onBlur=${done} /></li>`;
  }
  return html`<li class=${isCurrent ? "current" : ""}><button class="open" onClick=${() => onOpen(talk)} onDblClick=${() => setRenaming(true)}
      aria-current=${isCurrent ? "true" : null}>${chat.isBusy(talk.id) && html`<i class="dot busy" role="img" aria-label=${t("answering")}></i>`}<span>${talk.title}</span>
      ${find && html`<small class="dim">${find.before}<mark>${find.hit}</mark>${find.after}</small>`}</button>
    <span class="acts"><${IconButton} icon=${talk.pinned ? "pin-off" : "pin"} name=${t(talk.pinned ? "unpinChat" : "pinChat", { title: talk.title })} onClick=${() => chat.pin(talk)} />
      <${IconButton} icon="pencil" name=${t("renameChat", { title: talk.title })} onClick=${() => setRenaming(true)} />
      <${IconButton} icon="trash-2" name=${t("deleteChat", { title: talk.title })} onClick=${() => chat.remove(talk)} /></span></li>`;
}

function Chats({ all, current, onOpen, onNew, onSearch }) {
  const [note, setNote] = useState("");
  const [text, setText] = useState("");
  const words = text.trim().toLowerCase();
  const row = (talk, find) => html`<${Row} key=${talk.id} talk=${talk} isCurrent=${talk.id === current} find=${find} onOpen=${onOpen} />`;
  const hits = words && all.map((talk) => [talk, found(talk, words)]).filter(([, find]) => find);
  const bring = async ({ target }) => {
    try {
      if (target.files[0]) await chat.importFrom(await target.files[0].text());
      setNote("");
    } catch (error) { setNote(t("nothingImported", { reason: error.message })); }
    target.value = ""; // the same file may be chosen again
  };
  return html`<button class="new" onClick=${onNew}><${Icon} name="square-pen" />${t("newChat")}<kbd>Alt N</kbd></button>
    <div class="searchbox"><${Icon} name="search" /><input type="search" aria-label=${t("searchChats")} placeholder=${t("searchChats")}
      value=${text} onInput=${(event) => setText(event.target.value)} />${onSearch && html`<button class="keyhint" tabindex="-1" aria-label=${t("palette")} onClick=${onSearch}><kbd>⌘K</kbd></button>`}</div>
    <div class="chats">${words ? html`<ul>${hits.map(([talk, find]) => row(talk, find))}${!hits.length && html`<li class="dim">${t("nothingFound")}</li>`}</ul>`
    : grouped(all).map(([name, list]) => html`<h3>${name}</h3><ul>${list.map((talk) => row(talk))}</ul>`)}
      ${!all.length && html`<p class="dim">${t("noChats")}</p>`}</div>
    <div class="row tools"><button class="quiet" onClick=${() => download(all)}><${Icon} name="upload" />${t("export")}</button>
      <label class="button quiet"><${Icon} name="download" />${t("import")}<input type="file" accept="application/json" aria-label=${t("import")} onChange=${bring} /></label></div>
    ${note && html`<p class="error" role="alert">${note}</p>`}`;
}

export const TalkList = (props) => html`<aside aria-label=${t("chats")}><${Chats} ...${props} /></aside>`;

// The same on a phone, where there is no room beside the conversation.
export const TalkDrawer = ({ onClose, ...props }) => html`<${Sheet} title=${t("chats")} kind="left" onClose=${onClose}>
  <${Chats} ...${props} onSearch=${null} /></${Sheet}>`;
