// One message of a conversation, as it is shown.
import { html, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import * as talks from "./conversations.js";
import { copy } from "./copy.js";
import { seconds } from "./format.js";
import { Growing } from "./markdown.js";
import { isPicture } from "./pictures.js";

function Body({ text, whole }) {
  const box = useRef();
  const shown = useRef();
  useLayoutEffect(() => {
    shown.current ??= new Growing(box.current);
    shown.current.show(text, whole);
  }, [text, whole]);
  return html`<div class="text" ref=${box}></div>`;
}

const REASONS = { stopped: "stopped", length: "cut at the limit" };

function Figures({ message }) {
  const parts = [
    message.speed && `${message.speed.toFixed(1)} tokens/s`,
    message.ttft && `first token ${(message.ttft / 1000).toFixed(2)} s`,
    message.tokens && `${message.tokens} token${message.tokens === 1 ? "" : "s"}`,
    message.cached && `${message.cached} cached`, REASONS[message.reason], message.model,
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
  const send = () => { if (draft.trim()) onDone(draft.trim()); };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "Escape") { event.stopPropagation(); onCancel(); }
  };
  return html`<article class="user editing"><textarea value=${draft} autofocus rows="3"
    aria-label="Edited question" onKeyDown=${onKey} onInput=${(event) => setDraft(event.target.value)} />
    <footer><button onClick=${onCancel}>Cancel</button>
    <button class="main" disabled=${!draft.trim()} onClick=${send}>Send</button></footer></article>`;
}

// What was refused for want of memory is mended where models are planned.
function Failure({ message }) {
  return html`<div class="error notice" role="alert"><p>${message.error}</p>
    ${message.code === "cannot_fit" && html`<p><a href="#models">See what fits in Models</a></p>`}</div>`;
}

function Reasoning({ message, live }) {
  if (!message.reasoning) return null;
  const open = Boolean(live && !message.text);
  const title = open ? "Thinking" : message.thought ? `Thought for ${seconds(message.thought / 1000)}` : "Reasoning";
  return html`<details open=${open}><summary>${title}</summary>
    <${Body} text=${message.reasoning} whole=${!open} /></details>`;
}

const CUT = ["length", "stopped", "broken"];

function Footer({ talk, message, busy, onRetry, onContinue, onEdit, onShow }) {
  const [copied, setCopied] = useState(false);
  const mine = message.role === "user";
  const take = async () => {
    setCopied(await copy(message.text));
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<footer>${!mine && html`<${Figures} message=${message} />`}
    <${Versions} talk=${talk} message=${message} onShow=${onShow} />
    ${message.text && html`<button aria-label=${mine ? "Copy question" : "Copy answer"} onClick=${take}>${copied ? "Copied" : "Copy"}</button>`}
    ${!mine && message.text && CUT.includes(message.reason) && html`<button disabled=${busy}
      onClick=${() => onContinue(message)}>Continue</button>`}
    <button disabled=${busy} onClick=${mine ? onEdit : () => onRetry(message)}>${mine ? "Edit" : "Retry"}</button></footer>`;
}

export function Message({ talk, message, live, busy, onRetry, onContinue, onEdit, onShow }) {
  const [editing, setEditing] = useState(false);
  const mine = message.role === "user";
  if (editing) {
    const done = (text) => { setEditing(false); onEdit(message, text); };
    return html`<${Editor} text=${message.text} onDone=${done} onCancel=${() => setEditing(false)} />`;
  }
  return html`<article class=${message.role}><${Reasoning} message=${message} live=${live} />
    ${(message.images || []).filter(isPicture).map((uri) => html`<img class="picture" src=${uri} alt="Picture in the question" />`)}
    ${(message.files || []).map((file) => html`<details class="file"><summary>${String(file.name)}</summary><pre tabindex="0">${String(file.text)}</pre></details>`)}
    ${mine ? message.text && html`<div class="text plain" dir="auto">${message.text}</div>`
    : html`<${Body} text=${message.text || ""} whole=${!live} />`}
    ${live && !message.text && !message.reasoning && html`<span class="waiting" role="img" aria-label="Waiting"></span>
      ${message.waits && html`<small class="dim" role="status">${message.waits}</small>`}`}
    ${(message.calls || []).map((call) => html`<div class="tool"><b>${call.name}</b>
      <pre tabindex="0">${call.arguments}</pre></div>`)}
    ${message.error && html`<${Failure} message=${message} />`}
    ${!live && html`<${Footer} talk=${talk} message=${message} busy=${busy} onRetry=${onRetry}
      onContinue=${onContinue} onEdit=${() => setEditing(true)} onShow=${onShow} />`}</article>`;
}
