// The chats of this page: what is open, what is being written, which answers are under way. It
// outlives the view, so that a look at the monitor costs neither a draft nor an answer.
import { useLayoutEffect, useState } from "./vendor/htm-preact.js";
import { answer, asMessages } from "./answer.js";
import { complete, forgetAnswer } from "./api.js";
import * as talks from "./conversations.js";
import { loadRenderer } from "./parts.js";
import { place } from "./places.js";
import * as sync from "./sync.js";
import { t } from "./texts.js";

const SHARE = 3; // the page renders for at most a quarter of the time that an answer takes
export const NEW = "new";
const TITLE_FROM = 1000; // characters that a title is made of
const KEEP_MS = 3000; // how often an answer under way is stored

const listeners = new Set();
const drafts = new Map();
const live = new Map(); // of a conversation: {message, stop}
const blank = talks.fresh();
export const chats = { all: [], talk: blank, model: "", warning: "", removed: null, announced: "", ready: false };

function tell() {
  for (const listener of listeners) listener();
}

let cost = 0;
let waiting = false;
// At most once a frame, and the less often the longer it takes.
function tellSoon() {
  if (waiting) return;
  waiting = true;
  const render = () => {
    waiting = false;
    const from = performance.now();
    tell();
    // Preact draws in a microtask of its own, which goes before this one.
    queueMicrotask(() => { cost = performance.now() - from; });
  };
  setTimeout(() => requestAnimationFrame(render), SHARE * cost);
}

export function useChats() {
  const [, draw] = useState(0);
  // With the drawing, not after it: what is told in between would be missed.
  useLayoutEffect(() => {
    const listener = () => draw((count) => count + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return chats;
}

export const draftOf = (id) => drafts.get(id) || { text: "", images: [], files: [] };
export const setDraft = (id, draft) => { drafts.set(id, draft); tell(); };
export const liveOf = (id) => live.get(id);
export const busyIds = () => [...live.keys()].join();
export const isBusy = (id) => live.has(id);
export const chooseModel = (model) => { chats.model = model; tell(); };

const known = (id) => (chats.talk.id === id ? chats.talk : chats.all.find((one) => one.id === id));

// In memory first: what cannot be stored is shown all the same.
function put(talk, changed, revive = false) {
  if (chats.talk.id === talk.id) chats.talk = talk;
  const others = chats.all.filter((one) => one.id !== talk.id);
  chats.all = [talk, ...others].sort((a, b) => b.at - a.at);
  tell();
  sync.kept(talk, changed, revive);
  return talks.save(talk, changed).then(() => { chats.warning = ""; }, (error) => {
    chats.warning = t("cannotStore", { reason: error.message || error.name });
    tell();
  });
}

export const change = (talk) => put(talk, []);

// Opens what no address has named; the address follows.
function show(talk) {
  chats.talk = talk;
  wanted = "";
  const address = talk.messages.length ? talk.id : NEW;
  if (place().view === "chat") history.replaceState(null, "", `#chat/${address}`);
}

let wanted = ""; // the chat of the address, where it is not known yet

// By what stands in the address: a chat's id, "new", or nothing for the one that was open.
export function open(id) {
  wanted = id;
  if (id === NEW) {
    if (chats.talk.messages.length) chats.talk = talks.fresh();
    wanted = "";
    tell();
    return;
  }
  const talk = chats.all.find((one) => one.id === id);
  if (!talk) return;
  wanted = "";
  chats.talk = talk;
  tell();
}

// --- removing, and taking that back -----------------------------------------------------------

export async function remove(talk) {
  live.get(talk.id)?.stop();
  chats.all = chats.all.filter((one) => one.id !== talk.id);
  chats.removed = talk;
  if (chats.talk.id === talk.id) show(talks.fresh());
  tell();
  sync.gone(talk.id);
  await talks.remove(talk.id).catch(() => {});
}

export function restore() {
  const { pending, ...talk } = chats.removed;
  chats.removed = null;
  show(talk);
  return put(talk, talk.messages, true);
}

export const forgetRemoved = () => { chats.removed = null; tell(); };

export async function importFrom(text) {
  await talks.importFrom(text);
  await read();
}

// --- answers --------------------------------------------------------------------------------

// Follows the answer that `talk.pending` names to its end. `body` null: it was begun by a page that
// is gone, or by another tab.
async function follow(id, body) {
  const { key, message: begun } = known(id).pending;
  const stop = new AbortController();
  const entry = { message: begun, stop: () => { stop.abort(); forgetAnswer(key); } };
  live.set(id, entry);
  chats.announced = t("answering");
  tell();
  let kept = performance.now();
  const last = await answer(key, body, begun, stop.signal, (message) => {
    entry.message = message;
    if (performance.now() - kept > KEEP_MS && known(id)) {
      kept = performance.now();
      const { pending } = known(id);
      if (pending) talks.save({ ...known(id), pending: { ...pending, shown: message } }, []).catch(() => {});
    }
    tellSoon();
  });
  live.delete(id);
  chats.announced = t(last.error ? "answerFailed" : "answerComplete");
  const talk = known(id);
  if (!talk) { tell(); return; } // removed meanwhile
  const { pending, ...settled } = talk;
  const shown = pending?.shown;
  // The daemon forgot it: what this browser saw is more than nothing.
  const whole = last.reason === "broken" && !last.text && shown ? { ...shown, ...last, text: shown.text,
    reasoning: shown.reasoning } : last;
  await put(talks.add(settled, begun.parent, whole)[0], [whole]);
  if (whole.text && !whole.error && settled.messages.every((one) => one.role === "user")) await nameByModel(id, whole);
}

// After the first answer, where the reader has asked for that; a title of the reader's own stays.
async function nameByModel(id, { text, model }) {
  if (localStorage.getItem("titles") !== "model") return;
  const { title, messages } = known(id);
  const content = `Write a title of at most six words for this chat, in its language. Reply with the title only.\n\nQuestion: ${
    messages[0].text.slice(0, TITLE_FROM)}\n\nAnswer: ${text.slice(0, TITLE_FROM)}`;
  try {
    const reply = await complete({ model, messages: [{ role: "user", content }], max_tokens: 24, temperature: 0.2, enable_thinking: false });
    const found = titleOf(reply.choices[0].message.content.trim().replace(/^["'#*\s]+|["'*.\s]+$/g, ""));
    if (known(id)?.title === title) await change({ ...known(id), title: found });
  } catch { /* the question's own words stay */ }
}

async function begin(talk, parent, more = {}, history = talks.branch({ ...talk, leaf: parent })) {
  if (isBusy(talk.id)) return;
  const { model } = chats;
  const key = talks.newId() + talks.newId();
  const message = { id: talks.newId(), parent, role: "assistant", text: "", reasoning: "", model,
    at: Date.now() };
  const body = { model, messages: asMessages(talk, history), stream: true, ...talk.sampling,
    stream_options: { include_usage: true }, ...more.body };
  const pending = { key, parent, model, message: { ...message, ...more.message } };
  const stored = put({ ...talk, leaf: parent, pending }, talk.messages);
  await follow(talk.id, body);
  await stored;
}

const titleOf = (text) => {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 60).replace(/\s+\S*$/, "")}…` : line || t("newChat");
};

export function ask(talk, draft, parent = talk.leaf) {
  if (isBusy(talk.id)) return;
  loadRenderer();
  const { text, images, files } = draft;
  const titled = talk.messages.length ? talk : { ...talk, title: titleOf(text || files[0]?.name || t("picture")) };
  const [asked, question] = talks.add(titled, parent, { role: "user", text, images, files });
  begin(asked, question.id);
}

export function retry(talk, message, model = chats.model || message.model) {
  chats.model = model;
  return begin(talk, message.parent);
}

// A question edited is asked anew; an answer edited is a version of its own.
export function edit(talk, old, text) {
  if (old.role === "user") return ask(talk, { ...old, text }, old.parent);
  const { id, error, ...rest } = old;
  const [changed, added] = talks.add(talk, old.parent, { ...rest, text, edited: true });
  return put(changed, [added]);
}

// A chat of its own that begins with the messages up to this one.
export function branchOff(talk, message) {
  const messages = talks.branch({ ...talk, leaf: message.id });
  const own = { ...talks.fresh(), title: talk.title, system: talk.system, sampling: talk.sampling,
    messages, leaf: message.id };
  show(own);
  return put(own, messages);
}

export const rename = (talk, title) => change({ ...talk, title: title.trim() || talk.title });
export const pin = (talk) => change({ ...talk, pinned: !talk.pinned });

// Writes on where an answer was cut, stopped or broken off.
export function goOn(talk, message) {
  const { error, code, reason, ...begun } = message;
  const history = talks.branch({ ...talk, leaf: message.id });
  begin(talk, message.parent, { message: begun, body: { continue_final_message: true } }, history);
}

// --- the start, and other tabs ----------------------------------------------------------------

function resume(talk) {
  if (talk.pending && !live.has(talk.id)) {
    // Written by a page of an earlier version, it names no message.
    talk.pending.message ??= { id: talk.pending.key, parent: talk.pending.parent, role: "assistant",
      text: "", reasoning: "", model: talk.pending.model, at: Date.now() };
    follow(talk.id, null);
  }
}

export async function read() {
  let found;
  try { found = await talks.all(); } catch (error) {
    chats.warning = t("cannotRead", { reason: error.message || error.name });
    tell();
    return;
  }
  const ours = new Map([...chats.all, chats.talk].map((one) => [one.id, one]));
  // What could not be stored is still here.
  const stored = new Set(found.map((one) => one.id));
  chats.all = chats.warning ? [...found, ...chats.all.filter((one) => !stored.has(one.id))] : found;
  // Of an answer under way this page may know more than has been stored.
  for (const [at, talk] of found.entries()) {
    const own = isBusy(talk.id) && ours.get(talk.id);
    if (!own) continue;
    const ids = new Set(talk.messages.map((one) => one.id));
    found[at] = { ...talk, leaf: own.leaf, pending: own.pending,
      messages: [...talk.messages, ...own.messages.filter((one) => !ids.has(one.id))] };
  }
  chats.talk = found.find((one) => one.id === chats.talk.id) || chats.talk;
  if (wanted) open(wanted);
  tell();
  for (const talk of found) resume(talk);
}

talks.onChange(read);

// What another browser has changed, by way of the daemon.
async function take(list) {
  for (const talk of list) {
    const own = known(talk.id);
    if (talk.gone) {
      await talks.remove(talk.id);
      if (chats.talk.id === talk.id) show(talks.fresh());
    } else if (talks.isWhole(talk)) {
      const newer = own && own.at > talk.at ? own : talk;
      await talks.save({ ...newer, pending: own?.pending }, talk.messages);
    }
  }
  await read();
}

export const exchange = () => sync.exchange(() => chats.all, take);
sync.everySoOften(exchange);

export async function keepOnMachine(on) {
  if (!on) return sync.switchOff();
  await sync.switchOn(chats.all);
  return exchange();
}

// What another app shares with the installed page comes in the address, once; it is never sent unread.
function shared() {
  const query = new URLSearchParams(location.search);
  const given = ["title", "text", "url"].map((name) => query.get(name)).filter(Boolean).join("\n");
  if (given) history.replaceState(null, "", `${location.pathname}${location.hash}`);
  return given;
}

export async function start(id) {
  await read();
  if (chats.all.length) await loadRenderer(); // nothing jumps when it comes
  const given = shared();
  if (given) {
    show(talks.fresh());
    setDraft(chats.talk.id, { ...draftOf(chats.talk.id), text: given });
  } else if (id) open(id);
  else if (chats.talk === blank && chats.all[0]) open(chats.all[0].id);
  chats.ready = true;
  tell();
  exchange();
}
