// Chats kept by the daemon, for those who switched it on: what changes here goes there, what
// changed elsewhere comes here. Without it, chats stay in this browser.
import { request } from "./api.js";

const ON = "keep-chats";
const SINCE = "keep-since"; // the last change that this browser has taken over
const UNSENT = "keep-unsent"; // ids of chats that the daemon does not have yet
const EVERY_MS = 10_000;

export const isKept = () => localStorage.getItem(ON) === "yes";

const unsent = () => { try { return JSON.parse(localStorage.getItem(UNSENT)) || {}; } catch { return {}; } };
function mark(id, what) {
  const { [id]: _, ...rest } = unsent();
  localStorage.setItem(UNSENT, JSON.stringify(what ? { ...rest, [id]: what } : rest));
}

async function send(talk, messages, revive) {
  const { messages: _, pending, ...chat } = talk; // an answer under way is followed where it was asked
  await request("PUT", `/chats/${talk.id}`, { chat, messages, revive });
}

// After each change of this browser. What does not arrive is sent whole, later.
export async function kept(talk, changed, revive) {
  if (!isKept()) return;
  if (!navigator.onLine) { mark(talk.id, revive ? "back" : "changed"); return; }
  try {
    await send(talk, changed, revive);
  } catch (error) {
    if (error.status !== 410) mark(talk.id, revive ? "back" : "changed");
  }
}

export async function gone(id) {
  if (!isKept()) return;
  try { await request("DELETE", `/chats/${id}`); mark(id, ""); } catch { mark(id, "gone"); }
}

async function sendUnsent(all) {
  for (const [id, what] of Object.entries(unsent())) {
    const talk = all.find((one) => one.id === id);
    if (what === "gone") await request("DELETE", `/chats/${id}`);
    else if (talk) await send(talk, talk.messages, what === "back").catch((error) => { if (error.status !== 410) throw error; });
    mark(id, "");
  }
}

// What changed elsewhere since the last time: whole chats, and {id, gone}.
async function* changes() {
  for (let more = true; more;) {
    const reply = await request("GET", `/chats?since=${Number(localStorage.getItem(SINCE)) || 0}`);
    yield reply.chats;
    localStorage.setItem(SINCE, reply.number);
    more = reply.more;
  }
}

let busy = false;
// `take` stores a list of changes here. Nothing while the daemon is away.
export async function exchange(all, take) {
  if (!isKept() || busy || document.hidden) return;
  busy = true;
  try {
    await sendUnsent(all());
    for await (const list of changes()) if (list.length) await take(list);
  } catch { /* away: the next time */ } finally { busy = false; }
}

export function everySoOften(act) {
  setInterval(act, EVERY_MS);
  document.addEventListener("visibilitychange", act);
  addEventListener("focus", act);
}

// On: all chats of this browser are sent. Off: the daemon forgets what this caller keeps.
export async function switchOn(all) {
  localStorage.setItem(ON, "yes");
  localStorage.removeItem(SINCE);
  for (const talk of all) mark(talk.id, "changed");
}

export async function switchOff() {
  await request("DELETE", "/chats");
  for (const key of [ON, SINCE, UNSENT]) localStorage.removeItem(key);
}

export const sharing = async () => (await request("GET", "/chats/sharing")).keys;
export const shareWith = async (keys) => (await request("PUT", "/chats/sharing", { keys })).keys;
