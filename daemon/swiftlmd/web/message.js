// One message of a conversation, as it is shown.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import * as talks from "./conversations.js";
import { clean, dressCode } from "./markdown.js";
import { isPicture } from "./pictures.js";

function Body({ text }) {
  const box = useRef();
  useEffect(() => {
    box.current.innerHTML = clean(text);
    dressCode(box.current);
  }, [text]);
  return html`<div class="text" ref=${box}></div>`;
}

function Figures({ message }) {
  const parts = [
    message.speed && `${message.speed.toFixed(1)} tokens/s`,
    message.ttft && `first token ${(message.ttft / 1000).toFixed(2)} s`,
    message.tokens && `${message.tokens} token${message.tokens === 1 ? "" : "s"}`, message.cached && `${message.cached} cached`,
    message.reason === "stopped" && "stopped", message.reason === "length" && "cut at the limit",
  ];
  return html`<small class="dim figures">${parts.filter(Boolean).join(" · ")}</small>`;
}

function Versions({ talk, message, onShow }) {
  const all = talks.siblings(talk, message);
  if (all.length < 2) return null;
  const at = all.findIndex((one) => one.id === message.id);
  const show = (step) => onShow(talks.deepest(talk, all[at + step].id));
  return html`<span class="versions"><button aria-label="Earlier version" disabled=${!at}
    onClick=${() => show(-1)}>‹</button>${at + 1}/${all.length}<button aria-label="Later version"
    disabled=${at + 1 === all.length} onClick=${() => show(1)}>›</button></span>`;
}

function Editor({ text, onDone, onCancel }) {
  const [draft, setDraft] = useState(text);
  return html`<article class="user editing"><textarea value=${draft} autofocus rows="3"
    aria-label="Edited question" onInput=${(event) => setDraft(event.target.value)} />
    <footer><button onClick=${onCancel}>Cancel</button>
    <button class="main" onClick=${() => onDone(draft)}>Send</button></footer></article>`;
}

// What was refused for want of memory is mended where models are planned.
function Failure({ message }) {
  return html`<div class="error notice" role="alert"><p>${message.error}</p>
    ${message.code === "cannot_fit" && html`<p><a href="#models">See what fits in Models</a></p>`}</div>`;
}

export function Message({ talk, message, live, onRetry, onEdit, onShow }) {
  const [editing, setEditing] = useState(false);
  const mine = message.role === "user";
  if (editing) {
    const done = (text) => { setEditing(false); onEdit(message, text); };
    return html`<${Editor} text=${message.text} onDone=${done} onCancel=${() => setEditing(false)} />`;
  }
  return html`<article class=${message.role}>
    ${message.reasoning && html`<details open=${live && !message.text}><summary>Reasoning</summary>
      <${Body} text=${message.reasoning} /></details>`}
    ${(message.images || []).filter(isPicture).map((uri) => html`<img class="picture" src=${uri} alt="Picture in the question" />`)}
    ${mine ? html`<div class="text plain">${message.text}</div>` : html`<${Body} text=${message.text} />`}
    ${live && !message.text && !message.reasoning && html`<span class="waiting" role="img" aria-label="Waiting"></span>`}
    ${(message.calls || []).map((call) => html`<div class="tool"><b>${call.name}</b>
      <pre tabindex="0">${call.arguments}</pre></div>`)}
    ${message.error && html`<${Failure} message=${message} />`}
    ${!live && html`<footer>${!mine && html`<${Figures} message=${message} />`}
      <${Versions} talk=${talk} message=${message} onShow=${onShow} />
      <button onClick=${mine ? () => setEditing(true) : () => onRetry(message)}>
        ${mine ? "Edit" : "Retry"}</button></footer>`}</article>`;
}
