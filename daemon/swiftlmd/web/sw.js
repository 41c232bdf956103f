// Keeps the shell for when the daemon is away. Only the page's own files: never an answer.
const SHELL = "shell-1";
const FILES = ["/", "/manifest.webmanifest", ...["app", "api", "chat", "conversations", "format",
  "markdown", "models", "monitor", "settings", "vendor/htm-preact", "vendor/marked",
  "vendor/purify"].map((name) => `/web/${name}.js`), "/web/style.css", "/web/icon.svg"];

const asked = (url) => new Request(url, url === "/" ? { headers: { Accept: "text/html" } } : {});

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(SHELL)
    .then((shell) => shell.addAll(FILES.map(asked)))
    .then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

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
