// Conversations live in this browser (IndexedDB) and nowhere else.
//
// Messages form a tree: {id, parent, role, ...}; `leaf` is the end of the branch that is shown.

let opened;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("swiftlm", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("talks", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function store(mode, work) {
  const base = await database();
  return new Promise((resolve, reject) => {
    const request = work(base.transaction("talks", mode).objectStore("talks"));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export async function all() {
  const talks = await store("readonly", (talks) => talks.getAll());
  return talks.sort((a, b) => b.at - a.at);
}

export const save = (talk) => store("readwrite", (talks) => talks.put(talk));
export const remove = (id) => store("readwrite", (talks) => talks.delete(id));

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)),
  (part) => part.toString(36)).join("");

export const fresh = () => ({
  id: newId(), title: "New chat", at: Date.now(), messages: [], leaf: null, system: "",
  sampling: {},
});

export function add(talk, parent, message) {
  const added = { id: newId(), parent, ...message };
  return [{ ...talk, at: Date.now(), messages: [...talk.messages, added], leaf: added.id }, added];
}

export function branch(talk) {
  const byId = new Map(talk.messages.map((message) => [message.id, message]));
  const shown = [];
  for (let at = byId.get(talk.leaf); at; at = byId.get(at.parent)) shown.unshift(at);
  return shown;
}

export const siblings = (talk, message) => talk.messages.filter(
  (other) => other.parent === message.parent && other.role === message.role);

// The newest end below a message.
export function deepest(talk, id) {
  const child = talk.messages.findLast((message) => message.parent === id);
  return child ? deepest(talk, child.id) : id;
}

const isMessage = (one) => typeof one?.id === "string" && typeof one.role === "string";

function checked({ id, title, at, messages, leaf, system, sampling }) {
  const whole = typeof id === "string" && Array.isArray(messages) && messages.every(isMessage);
  if (!whole) throw new Error("not a conversation");
  return { ...fresh(), id, title: String(title), at: Number(at) || 0, messages, leaf,
    system: String(system || ""), sampling: sampling || {} };
}

// All of a file's conversations or, where one is not whole, none.
export async function importFrom(text) {
  const talks = JSON.parse(text).conversations;
  if (!Array.isArray(talks)) throw new Error("this file holds no conversations");
  for (const talk of talks.map(checked)) await save(talk);
}
