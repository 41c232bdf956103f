// One message of a conversation, as it is shown.
import { Component, html, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import * as talks from "./conversations.js";
import { copy } from "./copy.js";
import { bytes, seconds } from "./format.js";
import { Icon, IconButton } from "./icons.js";
import { loadRenderer, renderer } from "./parts.js";
import { isPicture } from "./pictures.js";
import { t } from "./texts.js";

function Body({ text, whole }) {
  const box = useRef();
  const shown = useRef();
  const [, draw] = useState(0);
  const Growing = renderer();
  useLayoutEffect(() => {
    if (!Growing) { // of the first answer, for a moment
      if (text) loadRenderer().then(() => draw((count) => count + 1));
      return;
    }
    shown.current ??= new Growing(box.current);
    shown.current.show(text, whole);
  }, [text, whole, Growing]);
  return html`<div class="text" ref=${box}></div>`;
}

const REASONS = ["stopped", "length"];

function Figures({ message }) {
  const parts = [
    message.speed && t("tokensPerSecond", { speed: message.speed.toFixed(1) }),
    message.ttft && t("firstToken", { s: (message.ttft / 1000).toFixed(2) }),
    message.tokens && t("tokens", { n: message.tokens }),
    message.cached && t("cachedTokens", { n: message.cached }),
    REASONS.includes(message.reason) && t(`reason_${message.reason}`), message.edited && t("edited"),
  ];
  return html`<small class="dim figures">${parts.filter(Boolean).join(" · ")}</small>`;
}

function Versions({ talk, message, onShow }) {
  const all = talks.siblings(talk, message);
  if (all.length < 2) return null;
  const at = all.findIndex((one) => one.id === message.id);
  const show = (step) => onShow(talks.deepest(talk, all[at + step].id));
  return html`<span class="versions"><${IconButton} icon="chevron-left" name=${t("earlierVersion")} disabled=${!at}
    onClick=${() => show(-1)} />${at + 1}/${all.length}<${IconButton} icon="chevron-right" name=${t("laterVersion")}
    disabled=${at + 1 === all.length} onClick=${() => show(1)} /></span>`;
}

function Editor({ mine, text, onDone, onCancel }) {
  const [draft, setDraft] = useState(text);
  const box = useRef();
  useLayoutEffect(() => { box.current.focus(); }, []);
  useLayoutEffect(() => { box.current.style.height = "auto"; box.current.style.height = `${box.current.scrollHeight + 2}px`; }, [draft]);
  const send = () => { if (draft.trim()) onDone(draft.trim()); };
  const onKey = (event) => {
    if (mine && event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "Escape") { event.stopPropagation(); onCancel(); }
  };
  return html`<article class=${`${mine ? "user" : "assistant"} editing`}><textarea ref=${box} value=${draft} rows="3" dir="auto"
    aria-label=${t(mine ? "editedQuestion" : "editedAnswer")} onKeyDown=${onKey} onInput=${(event) => setDraft(event.target.value)} />
    <footer><button onClick=${onCancel}>${t("cancel")}</button>
    <button class="main" disabled=${!draft.trim()} onClick=${send}>${t(mine ? "send" : "save")}</button></footer></article>`;
}

// What was refused for want of memory is mended where models are planned.
function Failure({ message }) {
  return html`<div class="error notice" role="alert"><${Icon} name="triangle-alert" /><div><p>${message.error}</p>
    ${message.code === "cannot_fit" && html`<p><a href="#models">${t("seeWhatFits")}</a></p>`}</div></div>`;
}

function Reasoning({ message, live }) {
  if (!message.reasoning) return null;
  const open = Boolean(live && !message.text);
  const title = open ? t("thinking") : message.thought ? t("thoughtFor", { time: seconds(message.thought / 1000) }) : t("reasoning");
  return html`<details class=${open ? "thought now" : "thought"} open=${open}><summary><${Icon} name="brain" />${title}<${Icon} name="chevron-down" /></summary>
    <${Body} text=${message.reasoning} whole=${!open} /></details>`;
}

const CUT = ["length", "stopped", "broken"];
const VOICE = "speechSynthesis" in globalThis;

function ReadAloud({ text }) {
  const [reads, setReads] = useState(false);
  const toggle = () => {
    speechSynthesis.cancel();
    if (reads) { setReads(false); return; }
    const spoken = new SpeechSynthesisUtterance(text.replace(/[`*_#|>]/g, ""));
    spoken.onend = () => setReads(false);
    speechSynthesis.speak(spoken);
    setReads(true);
  };
  return html`<${IconButton} icon=${reads ? "square" : "volume-2"} name=${t(reads ? "stopReading" : "readAloud")} onClick=${toggle} />`;
}

function Footer({ talk, message, busy, onRetry, onRetryWith, onContinue, onBranch, onEdit, onShow }) {
  const [copied, setCopied] = useState(false);
  const mine = message.role === "user";
  const take = async () => {
    setCopied(await copy(message.text));
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<footer>${!mine && html`<${Figures} message=${message} />`}
    <${Versions} talk=${talk} message=${message} onShow=${onShow} /><span class="acts">
    ${!mine && message.text && CUT.includes(message.reason) && html`<button class="continue" disabled=${busy} onClick=${() => onContinue(message)}><${Icon} name="step-forward" />${t("continue")}</button>`}
    ${message.text && html`<${IconButton} icon=${copied ? "check" : "copy"} name=${copied ? t("copied") : t(mine ? "copyQuestion" : "copyAnswer")} onClick=${take} />`}
    ${(mine || message.text) && html`<${IconButton} icon="pencil" name=${t(mine ? "edit" : "editAnswer")} disabled=${busy} onClick=${onEdit} />`}
    ${!mine && html`<${IconButton} icon="rotate-ccw" name=${t("retry")} disabled=${busy} onClick=${() => onRetry(message)} />
      <${IconButton} icon="layers" name=${t("retryWith")} disabled=${busy} onClick=${() => onRetryWith(message)} />`}
    <${IconButton} icon="git-branch" name=${t("branchOff")} onClick=${() => onBranch(message)} />
    ${!mine && message.text && VOICE && html`<${ReadAloud} text=${message.text} />`}</span></footer>`;
}

// What is written now, in the place of the figures that come at the end.
function Pace({ message }) {
  if (!message.speedNow) return null;
  return html`<footer class="live"><small class="dim">${t("tokensPerSecond", { speed: message.speedNow.toFixed(1) })} · ${t("tokens", { n: message.pieces })}</small></footer>`;
}

function Given({ message }) {
  return html`${(message.images || []).filter(isPicture).map((uri) => html`<img class="picture" src=${uri} alt=${t("pictureInQuestion")} />`)}
    ${(message.files || []).map((file) => html`<details class="file"><summary><${Icon} name="file-text" />${String(file.name)}
      <small class="dim">${bytes(String(file.text).length)}</small></summary><pre tabindex="0">${String(file.text)}</pre></details>`)}`;
}

function Shown({ talk, message, last, live, busy, onEdit, ...acts }) {
  const [editing, setEditing] = useState(false);
  const mine = message.role === "user";
  if (editing) {
    const done = (text) => { setEditing(false); onEdit(message, text); };
    return html`<${Editor} mine=${mine} text=${message.text} onDone=${done} onCancel=${() => setEditing(false)} />`;
  }
  return html`<article class=${`${message.role}${last ? " last" : ""}`}>
    ${!mine && message.model && html`<div class="author"><img src="web/icon.svg" alt="" />${message.model.split("/").pop()}</div>`}
    <${Reasoning} message=${message} live=${live} /><${Given} message=${message} />
    ${mine ? message.text && html`<div class="text plain" dir="auto">${message.text}</div>`
    : html`<${Body} text=${message.text || ""} whole=${!live} />`}
    ${live && !message.text && !message.reasoning && html`<span class="waiting" role="img" aria-label=${t("waiting")}><i></i><i></i><i></i></span>
      ${message.waits && html`<small class="dim waits" role="status">${message.waits}</small>`}`}
    ${(message.calls || []).map((call) => html`<details class="tool"><summary><${Icon} name="wrench" /><b>${call.name}</b><${Icon} name="chevron-down" /></summary>
      <pre tabindex="0">${call.arguments}</pre></details>`)}
    ${message.error && html`<${Failure} message=${message} />`}
    ${live ? html`<${Pace} message=${message} />` : html`<${Footer} talk=${talk} message=${message} busy=${busy} onEdit=${() => setEditing(true)} ...${acts} />`}</article>`;
}

// A token of the last message is no reason to look at the others.
export class Message extends Component {
  shouldComponentUpdate(next) {
    return ["talk", "message", "last", "live", "busy"].some((name) => next[name] !== this.props[name]);
  }

  render(props) { return html`<${Shown} ...${props} />`; }
}
