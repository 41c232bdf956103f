// Keeps the shell for when the daemon is away. Only the page's own files: never an answer.
const SHELL = "shell-2";
const FILES = ["/", "/manifest.webmanifest", ...["answer", "api", "app", "chat", "composer",
  "conversations", "copy", "format", "highlight", "hub", "keys", "markdown", "memory", "message",
  "models", "monitor", "network", "pair", "pictures", "plan", "qr", "samples", "settings", "states",
  "talklist", "vendor/htm-preact", "vendor/marked", "vendor/purify",
].map((name) => `/web/${name}.js`), "/web/style.css", "/web/icon.svg"];

const asked = (url) => new Request(url, url === "/" ? { headers: { Accept: "text/html" } } : {});

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(SHELL)
    .then((shell) => shell.addAll(FILES.map(asked)))
    .then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => event.waitUntil(caches.keys()
  .then((names) => Promise.all(names.filter((name) => name !== SHELL).map((name) => caches.delete(name))))
  .then(() => self.clients.claim())));

self.addEventListener("fetch", (event) => {
  const path = new URL(event.request.url).pathname;
  if (event.request.method !== "GET" || !FILES.includes(path)) return;
  // The network first: an updated daemon shows its own page at once.
  event.respondWith(fetch(event.request).then((answer) => {
    if (answer.ok) {
      const copy = answer.clone();
      caches.open(SHELL).then((shell) => shell.put(path, copy));
    }
    return answer;
  }).catch(() => caches.match(path, { ignoreVary: true })));
});
