import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import * as chat from "./chats.js";
import { Composer } from "./composer.js";
import * as talks from "./conversations.js";
import { short } from "./format.js";
import { Icon, IconButton } from "./icons.js";
import { Message } from "./message.js";
import { lazily } from "./parts.js";
import { ModelButton, ModelPicker } from "./picker.js";
import { go, place } from "./places.js";
import { isSheetOpen } from "./sheet.js";
import { Notice, Welcome } from "./states.js";
import { TalkDrawer, TalkList } from "./talklist.js";
import { t } from "./texts.js";

const Options = lazily(() => import("./options.js").then((found) => found.Options));
const NEAR = 40; // pixels from the end that count as the end

function useShortcut(match, act) {
  useLayoutEffect(() => {
    const onKey = (event) => { if (!isSheetOpen() && match(event)) { event.preventDefault(); act(); } };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
}

// The messages, which follow what is written as long as the reader is at the end.
function Messages({ talk, live, busy, status, model, acts, onExample }) {
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
  useLayoutEffect(() => { // what is drawn late (the first answer, mathematics, pictures) is followed, too
    const grown = new ResizeObserver(() => { if (follows.current) toEnd(); });
    grown.observe(box.current.firstElementChild);
    return () => grown.disconnect();
  }, []);
  const all = live ? [...shown.filter((one) => one.id !== live.message.id), live.message] : shown;
  return html`<div class="scroller"><div class="messages" ref=${box} tabindex="0" role="group" aria-label=${t("conversationText")} onScroll=${note}>
    <div class="column">${!all.length && chat.chats.ready && html`<${Welcome} status=${status} model=${model} onExample=${onExample} />`}
    ${all.map((message, at) => html`<${Message} key=${message.id} talk=${talk} message=${message} last=${at === all.length - 1}
      live=${live?.message.id === message.id} busy=${busy} ...${acts} />`)}</div></div>
    ${away && html`<${IconButton} icon="arrow-down" class="down" name=${t("toEnd")} onClick=${() => { toEnd(); note(); }} />`}</div>`;
}

// What was deleted comes back for a while.
function Undo({ talk }) {
  useEffect(() => {
    const timer = setTimeout(chat.forgetRemoved, 10_000);
    return () => clearTimeout(timer);
  }, [talk.id]);
  return html`<p class="notice undo" role="status"><span class="grow">${t("deleted", { title: talk.title })}</span>
    <button onClick=${chat.restore}>${t("undo")}</button></p>`;
}

const RING = 2 * Math.PI * 8;

// The part of the context that this chat has filled, and how much of it the cache holds.
function Context({ talk, model }) {
  const last = talks.branch(talk).findLast((one) => one.used);
  if (!last || !model?.context) return null;
  const part = Math.min(1, last.used / model.context);
  const said = t("contextUsed", { used: last.used, all: model.context, cached: last.cached || 0 });
  return html`<span class=${`context ${part > 0.85 ? "warn" : ""}`} role="img" aria-label=${said} title=${said}>
    <svg viewBox="0 0 20 20"><circle cx="10" cy="10" r="8" /><circle class="done" cx="10" cy="10" r="8"
      stroke-dasharray=${`${RING * part} ${RING}`} transform="rotate(-90 10 10)" /></svg>
    <small>${short(last.used)} / ${short(model.context)}</small></span>`;
}

function usedModel(chosen, status) {
  const named = (name) => status.models.find((one) => one.model === name);
  const ready = status.models.find((one) => one.state === "ready");
  return (chosen && (named(chosen) || !status.models.length) ? chosen : "")
    || ready?.model || status.default_model || status.models[0]?.model || "";
}

export function Chat({ status, onSearch }) {
  const { all, talk, removed, warning, announced, model: chosen } = chat.useChats();
  const [open, setOpen] = useState(""); // "chats", "options", "models", or the message to ask again
  const [narrow, setNarrow] = useState(localStorage.getItem("narrow") === "yes");
  useLayoutEffect(() => {
    document.title = talk.messages.length ? `${talk.title} · swiftlm` : "swiftlm";
    // An address that names a chat is followed, not overwritten, also before its event has come.
    const { view, path } = place();
    if (view === "chat" && (!path || path === chat.NEW) && talk.messages.length) {
      history.replaceState(null, "", `#chat/${talk.id}`);
    }
    return () => { document.title = "swiftlm"; };
  }, [talk.id, talk.title, talk.messages.length]);
  const model = usedModel(chosen, status);
  const known = status.models.find((one) => one.model === model);
  const live = chat.liveOf(talk.id);
  const busy = Boolean(live);
  const close = () => setOpen("");
  const anew = () => { close(); go(`chat/${chat.NEW}`); };
  useShortcut((event) => event.altKey && event.code === "KeyN", anew);
  useShortcut((event) => event.key === "Escape" && busy, () => live.stop());
  const lists = { all, current: talk.id, onNew: anew, onSearch,
    onOpen: (other) => { close(); go(`chat/${other.id}`); } };
  const send = (draft) => { chat.chats.model = model; chat.ask(talk, draft); };
  const acts = { onRetry: (message) => chat.retry(talk, message), onContinue: (message) => chat.goOn(talk, message),
    onRetryWith: (message) => setOpen(message), onBranch: (message) => chat.branchOff(talk, message),
    onEdit: (old, text) => chat.edit(talk, old, text), onShow: (leaf) => chat.change({ ...talk, leaf }) };
  const side = () => { localStorage.setItem("narrow", narrow ? "" : "yes"); setNarrow(!narrow); };
  // A token is no reason to draw hundreds of chats again.
  const list = useMemo(() => html`<${TalkList} ...${lists} />`, [all, talk.id, chat.busyIds()]);
  return html`${!narrow && list}
    <section class="talk"><div class="bar">
      <${IconButton} icon="panel-left" class="on-wide" name=${t(narrow ? "showChats" : "hideChats")} onClick=${side} />
      <${IconButton} icon="list" class="on-phone" name=${t("chats")} onClick=${() => setOpen("chats")} />
      <${ModelButton} status=${status} model=${model} onClick=${() => setOpen("models")} />
      <span class="grow"></span><${Context} talk=${talk} model=${known} />
      <${IconButton} icon="sliders-horizontal" name=${t("options")} onClick=${() => setOpen("options")} />
      <${IconButton} icon="square-pen" class="on-phone" name=${t("newChat")} onClick=${anew} /></div>
      <${Messages} key=${talk.id} talk=${talk} live=${live} busy=${busy} status=${status} model=${model} acts=${acts}
        onExample=${(text) => chat.setDraft(talk.id, { ...chat.draftOf(talk.id), text })} />
      <span class="unseen" role="status">${announced}</span>
      <div class="foot">${removed && html`<${Undo} talk=${removed} />`}
      ${warning && html`<p class="error notice" role="alert">${warning}</p>`}
      <${Notice} status=${status} />
      <${Composer} key=${`draft-${talk.id}`} draft=${chat.draftOf(talk.id)} onDraft=${(draft) => chat.setDraft(talk.id, draft)}
        busy=${busy} away=${status.link === "away"} vision=${Boolean(known?.vision)} reasoning=${Boolean(known?.reasoning)}
        thinking=${talk.sampling.enable_thinking} onThinking=${(on) => chat.change({ ...talk, sampling: { ...talk.sampling, enable_thinking: on } })}
        onSend=${send} onStop=${() => live.stop()} /></div></section>
    ${open === "chats" && html`<${TalkDrawer} ...${lists} onClose=${close} />`}
    ${open === "options" && html`<${Options} talk=${talk} onClose=${close} />`}
    ${open === "models" && html`<${ModelPicker} status=${status} current=${model} onClose=${close}
      onChoose=${(name) => { chat.chooseModel(name); close(); }} />`}
    ${open?.id && html`<${ModelPicker} status=${status} current=${open.model} onClose=${close}
      onChoose=${(name) => { close(); chat.retry(talk, open, name); }} />`}`;
}
