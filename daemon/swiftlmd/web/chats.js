// The chats of this page: what is open, what is being written, which answers are under way. It
// outlives the view, so that a look at the monitor costs neither a draft nor an answer.
import { useEffect, useState } from "./vendor/htm-preact.js";
import { answer, asMessages } from "./answer.js";
import { forgetAnswer } from "./api.js";
import * as talks from "./conversations.js";

const SHARE = 3; // the page renders for at most a quarter of the time that an answer takes
const KEEP_MS = 3000; // how often an answer under way is stored

const listeners = new Set();
const drafts = new Map();
const live = new Map(); // of a conversation: {message, stop}
const blank = talks.fresh();
export const chats = { all: [], talk: blank, model: "", warning: "", removed: null, announced: "" };

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
  useEffect(() => {
    const listener = () => draw((count) => count + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return chats;
}

export const draftOf = (id) => drafts.get(id) || { text: "", images: [], files: [] };
export const setDraft = (id, draft) => { drafts.set(id, draft); tell(); };
export const liveOf = (id) => live.get(id);
export const isBusy = (id) => live.has(id);
export const chooseModel = (model) => { chats.model = model; tell(); };

const known = (id) => (chats.talk.id === id ? chats.talk : chats.all.find((one) => one.id === id));

// In memory first: what cannot be stored is shown all the same.
function put(talk, changed) {
  if (chats.talk.id === talk.id) chats.talk = talk;
  const others = chats.all.filter((one) => one.id !== talk.id);
  chats.all = [talk, ...others].sort((a, b) => b.at - a.at);
  tell();
  return talks.save(talk, changed).then(() => { chats.warning = ""; }, (error) => {
    chats.warning = `This browser cannot store the chat (${error.message || error.name}): it is lost when the page is closed.`;
    tell();
  });
}

export const change = (talk) => put(talk, []);

export function open(id) {
  const talk = chats.all.find((one) => one.id === id);
  if (!talk || talk.id === chats.talk.id) return;
  chats.talk = talk;
  tell();
}

export function anew() {
  if (chats.talk.messages.length) chats.talk = talks.fresh();
  tell();
}

// --- removing, and taking that back -----------------------------------------------------------

export async function remove(talk) {
  live.get(talk.id)?.stop();
  chats.all = chats.all.filter((one) => one.id !== talk.id);
  chats.removed = talk;
  if (chats.talk.id === talk.id) chats.talk = talks.fresh();
  tell();
  await talks.remove(talk.id).catch(() => {});
}

export function restore() {
  const { pending, ...talk } = chats.removed;
  chats.removed = null;
  chats.talk = talk;
  return put(talk, talk.messages);
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
  chats.announced = "Answering";
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
  chats.announced = last.error ? "The answer failed" : "Answer complete";
  const talk = known(id);
  if (!talk) { tell(); return; } // removed meanwhile
  const { pending, ...settled } = talk;
  const shown = pending?.shown;
  // The daemon forgot it: what this browser saw is more than nothing.
  const whole = last.reason === "broken" && !last.text && shown ? { ...shown, ...last, text: shown.text,
    reasoning: shown.reasoning } : last;
  await put(talks.add(settled, begun.parent, whole)[0], [whole]);
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
  return line.length > 60 ? `${line.slice(0, 60).replace(/\s+\S*$/, "")}…` : line || "New chat";
};

export function ask(talk, draft, parent = talk.leaf) {
  if (isBusy(talk.id)) return;
  const { text, images, files } = draft;
  const titled = talk.messages.length ? talk : { ...talk, title: titleOf(text || files[0]?.name || "Picture") };
  const [asked, question] = talks.add(titled, parent, { role: "user", text, images, files });
  begin(asked, question.id);
}

export const retry = (talk, message) => begin(talk, message.parent);

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
    chats.warning = `This browser keeps no chats (${error.message || error.name}): they are lost when the page is closed.`;
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
  tell();
  for (const talk of found) resume(talk);
}

talks.onChange(read);

export async function start(id) {
  await read();
  const talk = chats.all.find((one) => one.id === id) || (chats.talk === blank && !id && chats.all[0]);
  if (talk) chats.talk = talk;
  tell();
}
