// The conversations of this browser, and their way out of it and back.
import { html, useState } from "./vendor/htm-preact.js";

function download(all) {
  const link = document.createElement("a");
  const text = JSON.stringify({ conversations: all }, null, 1);
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "swiftlm-conversations.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

const holds = (talk, words) => [talk.title, ...talk.messages.map((one) => one.text || "")]
  .some((text) => text.toLowerCase().includes(words));

export function TalkList({ all, current, onOpen, onNew, onRemove, onImport }) {
  const [note, setNote] = useState("");
  const [words, setWords] = useState("");
  const shown = words.trim() ? all.filter((talk) => holds(talk, words.trim().toLowerCase())) : all;
  const bring = async ({ target }) => {
    try {
      await onImport(target.files[0]);
      setNote("");
    } catch (error) { setNote(`Nothing imported: ${error.message}`); }
    target.value = ""; // the same file may be chosen again
  };
  return html`<aside aria-label="Conversations"><button class="main" onClick=${onNew}>New chat</button>
    ${all.length > 5 && html`<input type="search" aria-label="Search the chats" placeholder="Search"
      value=${words} onInput=${(event) => setWords(event.target.value)} />`}
    <ul>${shown.map((talk) => html`<li key=${talk.id}><button onClick=${() => onOpen(talk)}
      aria-current=${talk.id === current ? "true" : null}>${talk.title}</button>
      <button class="cross" aria-label=${`Delete the chat ${talk.title}`} onClick=${() => onRemove(talk)}>×</button>
      </li>`)}${!shown.length && words && html`<li class="dim">Nothing found.</li>`}</ul>
    <div class="row"><button onClick=${() => download(all)}>Export</button>
      <label class="button">Import<input type="file" accept="application/json" aria-label="Import"
        onChange=${bring} /></label></div>${note && html`<p class="error" role="alert">${note}</p>`}</aside>`;
}

// The same on a phone, where there is no room beside the conversation.
export function TalkChoice({ all, talk, onOpen, onNew }) {
  return html`<select class="phone" aria-label="Conversation" value=${talk.id}
      onChange=${(event) => onOpen(all.find((one) => one.id === event.target.value) || talk)}>
    ${!all.some((one) => one.id === talk.id) && html`<option value=${talk.id}>New chat</option>`}
    ${all.map((one) => html`<option value=${one.id}>${one.title}</option>`)}</select>
    <button class="phone" onClick=${onNew}>New</button>`;
}
