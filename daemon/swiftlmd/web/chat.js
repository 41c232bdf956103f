import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { forgetAnswer, keptAnswer } from "./api.js";
import * as talks from "./conversations.js";
import { addCopyButtons, clean } from "./markdown.js";

const SAMPLING = { temperature: [0, 2, 0.05], top_p: [0, 1, 0.05], max_tokens: [1, 131072, 1] };

function merge(message, delta) {
  const calls = [...(message.calls || [])];
  for (const { index = 0, function: part = {} } of delta.tool_calls || []) {
    const call = calls[index] || { name: "", arguments: "" };
    calls[index] = { name: call.name + (part.name || ""),
      arguments: call.arguments + (part.arguments || "") };
  }
  return { ...message, calls, text: message.text + (delta.content || ""),
    reasoning: message.reasoning + (delta.reasoning_content || "") };
}

const asMessages = (talk, shown) => [
  ...(talk.system ? [{ role: "system", content: talk.system }] : []),
  ...shown.map(({ role, text }) => ({ role, content: text })),
];

// Streams the answer that the daemon keeps under `key` and tells `onChange` each state of it.
async function answer(key, body, model, signal, onChange) {
  let message = { role: "assistant", text: "", reasoning: "", model };
  const from = performance.now();
  try {
    for await (const event of keptAnswer(key, body, signal)) {
      const choice = event.choices?.[0];
      const delta = choice?.delta || {};
      if (!message.ttft && (delta.content || delta.reasoning_content || delta.tool_calls)) {
        message = { ...message, ttft: performance.now() - from };
      }
      message = merge(message, delta);
      if (choice?.finish_reason) message = { ...message, reason: choice.finish_reason };
      if (event.usage) {
        message = { ...message, tokens: event.usage.completion_tokens,
          cached: event.usage.prompt_tokens_details?.cached_tokens,
          speed: event.timings?.predicted_per_second };
      }
      onChange(message);
    }
  } catch (error) {
    const stopped = error.name === "AbortError";
    message = { ...message, ...(stopped ? { reason: "stopped" } : { error: error.message }) };
  }
  onChange(message);
}

function Body({ text }) {
  const box = useRef();
  useEffect(() => {
    box.current.innerHTML = clean(text);
    addCopyButtons(box.current);
  }, [text]);
  return html`<div class="text" ref=${box}></div>`;
}

function Figures({ message }) {
  const parts = [
    message.speed && `${message.speed.toFixed(1)} tokens/s`,
    message.ttft && `first token ${(message.ttft / 1000).toFixed(2)} s`,
    message.tokens && `${message.tokens} tokens`, message.cached && `${message.cached} cached`,
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

function Message({ talk, message, live, onRetry, onEdit, onShow }) {
  const [draft, setDraft] = useState(null);
  const mine = message.role === "user";
  if (draft !== null) {
    return html`<article class="user editing"><textarea value=${draft} autofocus
      aria-label="Edited question" onInput=${(event) => setDraft(event.target.value)} />
      <button class="main" onClick=${() => { onEdit(message, draft); setDraft(null); }}>Send</button>
      <button onClick=${() => setDraft(null)}>Cancel</button></article>`;
  }
  return html`<article class=${message.role}>
    ${message.reasoning && html`<details open=${live && !message.text}><summary>Reasoning</summary>
      <${Body} text=${message.reasoning} /></details>`}
    ${mine ? html`<div class="text plain">${message.text}</div>` : html`<${Body} text=${message.text} />`}
    ${live && !message.text && !message.reasoning && html`<span class="waiting" aria-label="Waiting"></span>`}
    ${(message.calls || []).map((call) => html`<div class="tool"><b>${call.name}</b>
      <pre>${call.arguments}</pre></div>`)}
    ${message.error && html`<p class="error" role="alert">${message.error}</p>`}
    ${!live && html`<footer>${!mine && html`<${Figures} message=${message} />`}
      <${Versions} talk=${talk} message=${message} onShow=${onShow} />
      <button onClick=${mine ? () => setDraft(message.text) : () => onRetry(message)}>
        ${mine ? "Edit" : "Retry"}</button></footer>`}</article>`;
}

function Options({ talk, onChange }) {
  const set = (name, value) => onChange({ ...talk, sampling: { ...talk.sampling,
    [name]: value === "" ? undefined : Number(value) } });
  return html`<details class="options"><summary>System prompt and sampling</summary>
    <label>System prompt<textarea value=${talk.system} rows="3"
      onChange=${(event) => onChange({ ...talk, system: event.target.value })} /></label>
    <div class="row">${Object.entries(SAMPLING).map(([name, [min, max, step]]) => html`<label>
      ${name.replace("_", " ")}<input type="number" min=${min} max=${max} step=${step}
      placeholder="default" value=${talk.sampling[name] ?? ""}
      onChange=${(event) => set(name, event.target.value)} /></label>`)}</div></details>`;
}

function download(all) {
  const link = document.createElement("a");
  const text = JSON.stringify({ conversations: all }, null, 1);
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "swiftlm-conversations.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

function List({ all, current, onOpen, onNew, onRemove, onImport }) {
  return html`<aside><button class="main" onClick=${onNew}>New chat</button>
    <ul>${all.map((talk) => html`<li key=${talk.id}><button onClick=${() => onOpen(talk)}
      aria-current=${talk.id === current ? "true" : null}>${talk.title}</button>
      <button class="cross" aria-label="Delete this chat" onClick=${() => onRemove(talk)}>×</button>
      </li>`)}</ul>
    <div class="row"><button onClick=${() => download(all)}>Export</button>
      <label class="button">Import<input type="file" accept="application/json" hidden
        onChange=${(event) => onImport(event.target.files[0])} /></label></div></aside>`;
}

function Welcome({ status, model }) {
  const loaded = status.models.some((one) => one.state === "ready");
  if (status.link === "up" && !status.models.length) {
    return html`<div class="empty"><h1>No model yet</h1>
      <p>Fetch one in <a href="#models">Models</a>; then ask it anything.</p></div>`;
  }
  return html`<div class="empty"><h1>What is on your mind?</h1><p>${loaded
    ? html`Answers come from <b>${model}</b> on this machine.`
    : "The model loads with your first question."}</p></div>`;
}

function Composer({ busy, away, onSend, onStop }) {
  const [text, setText] = useState("");
  const box = useRef();
  useEffect(() => box.current.focus(), []);
  const send = () => {
    if (!text.trim() || busy || away) return;
    onSend(text.trim());
    setText("");
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && busy) onStop();
  };
  return html`<div class="composer"><textarea ref=${box} rows="2" value=${text} aria-label="Message"
    placeholder="Ask anything. Enter sends, Shift-Enter breaks the line" onKeyDown=${onKey}
    onInput=${(event) => setText(event.target.value)} />${busy
    ? html`<button class="main stop" onClick=${onStop}>Stop</button>`
    : html`<button class="main" onClick=${send} disabled=${!text.trim() || away}>Send</button>`}</div>`;
}

function useTalks() {
  const [all, setAll] = useState([]);
  const [talk, setTalk] = useState(talks.fresh);
  const reload = async () => setAll(await talks.all());
  useEffect(() => {
    talks.all().then((found) => { setAll(found); if (found[0]) setTalk(found[0]); });
  }, []);
  const keep = async (changed) => {
    setTalk(changed);
    await talks.save(changed);
    await reload();
  };
  return { all, talk, setTalk, keep, reload };
}

export function Chat({ status }) {
  const { all, talk, setTalk, keep, reload } = useTalks();
  const [live, setLive] = useState(null);
  const [chosen, setChosen] = useState("");
  const abort = useRef();
  const end = useRef();
  const ready = status.models.find((one) => one.state === "ready");
  const model = chosen || ready?.model || status.default_model || status.models[0]?.model || "";
  const shown = talks.branch(talk);
  useEffect(() => end.current?.scrollIntoView({ block: "end" }), [live?.text, talk.leaf]);

  const run = async (start, parent) => {
    const key = talks.newId() + talks.newId();
    const history = talks.branch({ ...start, leaf: parent });
    const body = { model, messages: asMessages(start, history), stream: true, ...start.sampling,
      stream_options: { include_usage: true } };
    await keep({ ...start, pending: { key, parent, model } });
    await follow(start, { key, parent, model }, body);
  };
  // `body` null: the page was loaded again while the answer went on.
  const follow = async (start, { key, parent, model: asked }, body) => {
    const stop = new AbortController();
    abort.current = () => { stop.abort(); forgetAnswer(key); };
    let last;
    setLive({ role: "assistant", text: "", reasoning: "" });
    await answer(key, body, asked, stop.signal, (message) => {
      last = message;
      setLive(message);
    });
    setLive(null);
    const { pending, ...settled } = start;
    await keep(talks.add(settled, parent, last)[0]);
  };
  useEffect(() => {
    if (talk.pending && !live) follow(talk, talk.pending, null);
  }, [talk.id]);
  const ask = async (text, parent = talk.leaf) => {
    const titled = talk.messages.length ? talk : { ...talk, title: text.slice(0, 48) };
    const [asked, question] = talks.add(titled, parent, { role: "user", text });
    await keep(asked);
    await run(asked, question.id);
  };
  const retry = async (message) => {
    const start = { ...talk, leaf: message.parent };
    setTalk(start);
    await run(start, message.parent);
  };
  const forget = async (gone) => {
    await talks.remove(gone.id);
    if (gone.id === talk.id) setTalk(talks.fresh());
    await reload();
  };
  const take = async (file) => { if (file) { await talks.importFrom(await file.text()); await reload(); } };
  const open = (other) => { if (!live) setTalk(other); };

  return html`<${List} all=${all} current=${talk.id} onOpen=${open} onRemove=${forget}
      onNew=${() => open(talks.fresh())} onImport=${take} />
    <section class="talk"><div class="bar"><select aria-label="Model" value=${model}
      onChange=${(event) => setChosen(event.target.value)}>${status.models.map((one) => html`
      <option value=${one.model}>${one.model}</option>`)}</select>
      <select class="phone" aria-label="Conversation" value=${talk.id}
        onChange=${(event) => open(all.find((one) => one.id === event.target.value) || talk)}>
        ${!all.some((one) => one.id === talk.id) && html`<option value=${talk.id}>New chat</option>`}
        ${all.map((one) => html`<option value=${one.id}>${one.title}</option>`)}</select>
      <button class="phone" onClick=${() => open(talks.fresh())}>New</button></div>
      <div class="messages" aria-live="polite">
      ${!shown.length && !live && html`<${Welcome} status=${status} model=${model} />`}
      ${shown.map((message) => html`<${Message} key=${message.id} talk=${talk} message=${message}
        onRetry=${retry} onEdit=${(old, text) => ask(text, old.parent)}
        onShow=${(leaf) => keep({ ...talk, leaf })} />`)}
      ${live && html`<${Message} talk=${talk} message=${live} live />`}<div ref=${end}></div></div>
      <${Options} talk=${talk} onChange=${keep} />
      <${Composer} busy=${Boolean(live)} away=${status.link === "away"} onSend=${(text) => ask(text)}
        onStop=${() => abort.current?.()} /></section>`;
}
