// Conversations live in this browser (IndexedDB) and nowhere else.
//
// A conversation is {id, title, at, leaf, system, sampling, messages}. Its messages form a tree:
// {id, parent, role, ...}; `leaf` is the end of the branch that is shown. Each message is stored by
// itself, so that two tabs that write into one conversation lose nothing of each other.

import { t } from "./texts.js";

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("talks") : null;
let opened;

function upgrade(base, transaction, from) {
  if (from < 1) base.createObjectStore("talks", { keyPath: "id" });
  const messages = base.createObjectStore("messages", { keyPath: ["talk", "id"] });
  messages.createIndex("talk", "talk");
  if (from < 1) return;
  // Version 1 kept all messages in the conversation's own record.
  transaction.objectStore("talks").openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const { messages: all = [], ...talk } = cursor.value;
    for (const message of all) messages.put({ ...message, talk: talk.id });
    cursor.update(talk);
    cursor.continue();
  };
}

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("swiftlm", 2);
    request.onupgradeneeded = ({ oldVersion }) => upgrade(request.result, request.transaction, oldVersion);
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close(); // a newer page in another tab
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  opened.catch(() => { opened = undefined; });
  return opened;
}

async function transact(mode, work) {
  const base = await database();
  return new Promise((resolve, reject) => {
    const transaction = base.transaction(["talks", "messages"], mode);
    const request = work(transaction.objectStore("talks"), transaction.objectStore("messages"));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error || new Error("nothing was stored"));
  });
}

// All of them, the newest first.
export async function all() {
  let messages;
  const talks = await transact("readonly", (records, parts) => {
    messages = parts.getAll();
    return records.getAll();
  });
  const by = new Map(talks.map((talk) => [talk.id, { ...fresh(), ...talk, messages: [] }]));
  for (const { talk, ...message } of messages.result) by.get(talk)?.messages.push(message);
  for (const talk of by.values()) talk.messages.sort((a, b) => (a.at || 0) - (b.at || 0));
  return [...by.values()].sort((a, b) => b.at - a.at);
}

// The conversation's own record, and of its messages those that are new or have changed.
export async function save({ messages, ...talk }, changed = messages) {
  await transact("readwrite", (records, parts) => {
    for (const message of changed) parts.put({ ...message, talk: talk.id });
    return records.put(talk);
  });
  channel?.postMessage(talk.id);
}

export async function remove(id) {
  await transact("readwrite", (records, parts) => {
    parts.delete(IDBKeyRange.bound([id, ""], [id, "\uffff"]));
    return records.delete(id);
  });
  channel?.postMessage(id);
}

// Calls `act` when another tab has changed something.
export const onChange = (act) => { if (channel) channel.onmessage = act; };

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)),
  (part) => part.toString(36)).join("");

export const fresh = () => ({
  id: newId(), title: t("newChat"), at: Date.now(), messages: [], leaf: null, system: "",
  sampling: {},
});

export function add(talk, parent, message) {
  const added = { id: newId(), parent, at: Date.now(), ...message };
  const others = talk.messages.filter((one) => one.id !== added.id);
  return [{ ...talk, at: Date.now(), messages: [...others, added], leaf: added.id }, added];
}

// The messages from the first to the leaf.
export function branch(talk) {
  const byId = new Map(talk.messages.map((message) => [message.id, message]));
  const shown = [];
  for (let at = byId.get(talk.leaf); at; at = byId.get(at.parent)) {
    byId.delete(at.id); // a file that was tampered with may hold a circle
    shown.push(at);
  }
  return shown.reverse();
}

export const siblings = (talk, message) => talk.messages.filter(
  (other) => other.parent === message.parent && other.role === message.role);

// The newest end below a message.
export function deepest(talk, id) {
  const seen = new Set();
  for (let at = id; ;) {
    seen.add(at);
    const child = talk.messages.findLast((message) => message.parent === at && !seen.has(message.id));
    if (!child) return at;
    at = child.id;
  }
}

const ROLES = ["user", "assistant"];
const isText = (value) => value === undefined || typeof value === "string";
const isMessage = (one) => typeof one?.id === "string" && ROLES.includes(one.role)
  && (one.parent === null || typeof one.parent === "string")
  && isText(one.text) && isText(one.reasoning) && isText(one.error)
  && [one.images, one.calls, one.files].every((list) => list === undefined || Array.isArray(list));

// Every chain of parents ends.
function isTree(messages) {
  const parents = new Map(messages.map((one) => [one.id, one.parent]));
  if (parents.size !== messages.length) return false;
  const sound = new Set([null, undefined]);
  for (const { id } of messages) {
    const chain = new Set();
    for (let at = id; !sound.has(at) && parents.has(at); at = parents.get(at)) {
      if (chain.has(at)) return false;
      chain.add(at);
    }
    for (const at of chain) sound.add(at);
  }
  return true;
}

// Of another browser, or of a file: nothing that would hang or throw here.
export const isWhole = ({ id, messages }) => typeof id === "string" && Array.isArray(messages)
  && messages.every(isMessage) && isTree(messages);

function checked({ id, title, at, messages, leaf, system, sampling, pinned }) {
  if (!isWhole({ id, messages })) throw new Error(t("notAConversation"));
  const own = messages.map((message) => ({ text: "", ...message }));
  return { ...fresh(), id, title: String(title), pinned: pinned === true, at: Number(at) || 0, messages: own,
    leaf: typeof leaf === "string" ? leaf : own.at(-1)?.id ?? null, system: String(system || ""),
    sampling: typeof sampling === "object" && sampling ? sampling : {} };
}

// All of a file's conversations or, where one is not whole, none.
export async function importFrom(text) {
  const talks = JSON.parse(text).conversations;
  if (!Array.isArray(talks)) throw new Error(t("noConversations"));
  for (const talk of talks.map(checked)) await save(talk);
}
