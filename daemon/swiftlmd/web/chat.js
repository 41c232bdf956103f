import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import * as chat from "./chats.js";
import { Composer } from "./composer.js";
import * as talks from "./conversations.js";
import { shortest } from "./format.js";
import { Message } from "./message.js";
import { Notice, Welcome } from "./states.js";
import { TalkChoice, TalkList } from "./talklist.js";

const SAMPLING = { temperature: [0, 2, 0.05], top_p: [0, 1, 0.05], top_k: [0, 1000, 1],
  min_p: [0, 1, 0.01], max_tokens: [1, 131072, 1], seed: [0, 2147483647, 1] };
const NEAR = 40; // pixels from the end that count as the end

function Options({ talk }) {
  const set = (name, value, [min, max]) => chat.change({ ...talk, sampling: { ...talk.sampling,
    [name]: value === "" ? undefined : Math.min(max, Math.max(min, Number(value))) } });
  return html`<details class="options"><summary>System prompt and sampling</summary>
    <label>System prompt<textarea value=${talk.system} rows="3"
      onChange=${(event) => chat.change({ ...talk, system: event.target.value })} /></label>
    <div class="row">${Object.entries(SAMPLING).map(([name, range]) => html`<label>
      ${name.replace("_", " ")}<input type="number" min=${range[0]} max=${range[1]} step=${range[2]}
      placeholder="default" value=${talk.sampling[name] ?? ""}
      onChange=${(event) => set(name, event.target.value, range)} /></label>`)}</div></details>`;
}

function useShortcut(match, act) {
  useEffect(() => {
    const onKey = (event) => { if (match(event)) { event.preventDefault(); act(); } };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
}

// The messages, which follow what is written as long as the reader is at the end.
function Messages({ talk, live, busy, status, model }) {
  const box = useRef();
  const follows = useRef(true);
  const [away, setAway] = useState(false);
  const toEnd = () => { box.current.scrollTop = box.current.scrollHeight; };
  const note = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR;
    setAway(!follows.current);
  };
  const shown = talks.branch(talk);
  const question = shown.findLast((one) => one.role === "user")?.id;
  useLayoutEffect(() => { follows.current = true; }, [question]);
  useLayoutEffect(() => { if (follows.current) toEnd(); });
  const all = live ? [...shown.filter((one) => one.id !== live.message.id), live.message] : shown;
  const acts = { onRetry: (message) => chat.retry(talk, message), onContinue: (message) => chat.goOn(talk, message),
    onEdit: (old, text) => chat.ask(talk, { ...old, text }, old.parent),
    onShow: (leaf) => chat.change({ ...talk, leaf }) };
  return html`<div class="scroller"><div class="messages" ref=${box} tabindex="0" role="group" aria-label="Conversation text" onScroll=${note}>
    ${!all.length && html`<${Welcome} status=${status} model=${model} />`}
    ${all.map((message) => html`<${Message} key=${message.id} talk=${talk} message=${message}
      live=${live?.message.id === message.id} busy=${busy} ...${acts} />`)}</div>
    ${away && html`<button class="down" aria-label="To the end" onClick=${() => { toEnd(); note(); }}>↓</button>`}</div>`;
}

// What was deleted comes back for a while.
function Undo({ talk }) {
  useEffect(() => {
    const timer = setTimeout(chat.forgetRemoved, 10_000);
    return () => clearTimeout(timer);
  }, [talk.id]);
  return html`<p class="notice undo" role="status"><span class="grow">Deleted “${talk.title}”.</span>
    <button onClick=${chat.restore}>Undo</button></p>`;
}

// The part of the context that this chat has filled.
function Context({ talk, model }) {
  const used = talks.branch(talk).findLast((one) => one.used)?.used;
  if (!used || !model?.context) return null;
  return html`<small class="dim context" title="Tokens of this chat, of the model's context">${used} of ${model.context} tokens</small>`;
}

export function Chat({ status, path }) {
  const { all, talk, removed, warning, announced, model: chosen } = chat.useChats();
  useEffect(() => { if (path) chat.open(path); }, [path, all.length]);
  useEffect(() => {
    document.title = talk.messages.length ? `${talk.title} · swiftlm` : "swiftlm";
    const address = talk.messages.length ? `#chat/${talk.id}` : "#chat";
    // Another view may have been asked for since; its address stays.
    const ours = /^(#chat\b.*)?$/.test(location.hash);
    if (ours && location.hash !== address) history.replaceState(null, "", address);
    return () => { document.title = "swiftlm"; };
  }, [talk.id, talk.title, talk.messages.length]);
  const named = (name) => status.models.find((one) => one.model === name);
  const ready = status.models.find((one) => one.state === "ready");
  const model = (chosen && (named(chosen) || !status.models.length) ? chosen : "")
    || ready?.model || status.default_model || status.models[0]?.model || "";
  const live = chat.liveOf(talk.id);
  const busy = Boolean(live);
  const open = (other) => { chat.open(other.id); location.hash = `chat/${other.id}`; };
  useShortcut((event) => event.altKey && event.code === "KeyN", chat.anew);
  useShortcut((event) => event.key === "Escape" && busy, () => live.stop());
  const take = async (file) => { if (file) await chat.importFrom(await file.text()); };
  const lists = { all, onOpen: open, onNew: chat.anew };
  const send = (draft) => { chat.chats.model = model; chat.ask(talk, draft); };
  return html`<${TalkList} ...${lists} current=${talk.id} onRemove=${chat.remove} onImport=${take} />
    <section class="talk"><div class="bar"><select aria-label="Model" value=${model}
      onChange=${(event) => chat.chooseModel(event.target.value)}>${status.models.map((one) => html`
      <option value=${one.model}>${shortest(one.model, status.models)}</option>`)}
      ${!status.models.length && html`<option value="">no model yet</option>`}</select>
      <${Context} talk=${talk} model=${named(model)} /><${TalkChoice} ...${lists} talk=${talk} /></div>
      <${Messages} key=${talk.id} talk=${talk} live=${live} busy=${busy} status=${status} model=${model} />
      <span class="unseen" role="status">${announced}</span>
      ${removed && html`<${Undo} talk=${removed} />`}
      ${warning && html`<p class="error notice" role="alert">${warning}</p>`}
      <${Notice} status=${status} /><${Options} talk=${talk} />
      <${Composer} key=${`draft-${talk.id}`} draft=${chat.draftOf(talk.id)} onDraft=${(draft) => chat.setDraft(talk.id, draft)}
        busy=${busy} away=${status.link === "away"} vision=${Boolean(named(model)?.vision)}
        onSend=${send} onStop=${() => live.stop()} /></section>`;
}
