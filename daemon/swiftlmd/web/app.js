import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { CHANGED, call } from "./api.js";
import { Chat } from "./chat.js";
import { start } from "./chats.js";
import { Models } from "./models.js";
import { Monitor } from "./monitor.js";
import { Pair, pairingToken } from "./pair.js";
import { remember } from "./samples.js";
import { Settings } from "./settings.js";
import { stateOf } from "./states.js";

const VIEWS = { chat: Chat, models: Models, monitor: Monitor, settings: Settings };
const NAMES = Object.keys(VIEWS);
// The view, and behind a slash what of it: `#chat/ID`.
const place = () => {
  const [view, path = ""] = location.hash.slice(1).split("/");
  return view in VIEWS ? { view, path } : { view: "chat", path: "" };
};
const EVERY_MS = 2000;

// The daemon's status, asked again every two seconds while somebody looks.
function useStatus() {
  const [status, setStatus] = useState({ link: "asking", models: [], downloads: [] });
  useEffect(() => {
    let timer;
    const ask = async () => {
      clearTimeout(timer);
      if (document.hidden) return;
      try {
        const found = await call("status");
        remember(found);
        setStatus({ link: "up", ...found });
      } catch (error) {
        const link = error.status === 401 ? "locked" : error.status ? "failed" : "away";
        setStatus((old) => ({ ...old, link }));
      }
      timer = setTimeout(ask, EVERY_MS);
    };
    ask();
    document.addEventListener("visibilitychange", ask);
    addEventListener(CHANGED, ask);
    return () => clearTimeout(timer);
  }, []);
  return status;
}

function Lock() {
  const unlock = (event) => {
    event.preventDefault();
    localStorage.setItem("key", event.target.elements.key.value.trim());
    location.reload();
  };
  return html`<main><form class="lock card" onSubmit=${unlock}><h1>This service needs a key</h1>
    <p class="dim">Paste one, or pair this device: Settings, Network on a screen that is let in.
      It stays in this browser.</p>
    <input name="key" type="password" autofocus aria-label="API key" required />
    <button class="main">Continue</button></form></main>`;
}

function App() {
  const status = useStatus();
  const [{ view, path }, setPlace] = useState(place());
  useEffect(() => {
    addEventListener("hashchange", () => setPlace(place()));
    setPlace(place());  // what changed between the first rendering and now
    addEventListener("keydown", (event) => {
      // By the place of the key: with Alt a Mac writes another character.
      const name = NAMES[Number(event.code.match(/^Digit(\d)$/)?.[1]) - 1];
      if (name && event.altKey) { event.preventDefault(); location.hash = name; }
    });
  }, []);
  const token = pairingToken();
  if (token) return html`<${Pair} token=${token} />`;
  if (status.link === "locked") return html`<${Lock} />`;
  const [tone, text] = stateOf(status);
  const View = VIEWS[view];
  return html`<header><a class="brand" href="#chat"><img src="web/icon.svg" alt="" />swiftlm</a>
    <nav aria-label="Sections">${NAMES.map((name) => html`<a href=${`#${name}`}
      aria-current=${name === view ? "page" : null}>${name}</a>`)}</nav>
    <span class="state ${tone}" role="status">${text}</span></header>
    ${status.link === "away" && html`<p class="away" role="alert">The daemon is away. Your
      conversations are here; the page goes on by itself when it is back.</p>`}
    <main class=${view}><${View} status=${status} path=${path} /></main>`;
}

start(place().view === "chat" ? place().path : "");
render(html`<${App} />`, document.getElementById("app"));
navigator.serviceWorker?.register("sw.js").catch(() => {});
