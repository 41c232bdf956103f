// Keeps the page for when the daemon is away. Only the page's own files: never an answer.
// The daemon writes both lines: a digest of all files, and their names beside this one.
const VERSION = "";
const FILES = [];

const CACHE = `page-${VERSION}`;
const SCOPE = self.registration.scope;
const PAGE = SCOPE;
const KEPT = new Set(FILES.map((name) => new URL(name, SCOPE).href));
// A proxy in front of a daemon that is away answers in its place.
const AWAY = [502, 503, 504];
// Open pages of another version than this cache: their files come from the daemon alone.
const newer = new Set();

const asked = (url) => new Request(url, {
  cache: "no-cache", ...(url === PAGE ? { headers: { Accept: "text/html" } } : {}) });

// All or nothing. A new version waits until the pages of the old one are closed.
self.addEventListener("install", (event) => event.waitUntil(
  caches.open(CACHE).then((cache) => cache.addAll([...KEPT].map(asked)))));

self.addEventListener("activate", (event) => event.waitUntil(caches.keys()
  .then((names) => Promise.all(names.filter((name) => name !== CACHE).map((name) => caches.delete(name))))
  .then(() => self.clients.claim())));

const kept = (url) => caches.open(CACHE).then((cache) => cache.match(url, { ignoreVary: true }));

// The page comes from the daemon where it answers: a new version shows at once.
async function page(event) {
  const answer = await fetch(event.request).catch(() => null);
  const away = !answer || AWAY.includes(answer.status);
  const found = away && await kept(PAGE);
  if (found) return found;
  if (!answer) return Response.error();
  if (answer.headers.get("X-Page-Version") !== VERSION) newer.add(event.resultingClientId);
  return answer;
}

// The files of a page are of its version, all of them.
async function file(event, url) {
  const found = !newer.has(event.clientId) && await kept(url);
  return found || fetch(event.request);
}

self.addEventListener("fetch", (event) => {
  const url = event.request.url.replace(/[?#].*$/, "");
  if (event.request.method !== "GET" || !KEPT.has(url)) return;
  if (url === PAGE) {
    if (event.request.mode === "navigate") event.respondWith(page(event));
    return;
  }
  event.respondWith(file(event, url));
});
