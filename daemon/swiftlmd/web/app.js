import { html, render, useEffect, useLayoutEffect, useState } from "./vendor/htm-preact.js";
import { CHANGED, call } from "./api.js";
import { Chat } from "./chat.js";
import { open, start } from "./chats.js";
import { Icon } from "./icons.js";
import { Pair, pairingToken } from "./pair.js";
import { lazily } from "./parts.js";
import { VIEWS, go, place } from "./places.js";
import { remember } from "./samples.js";
import { stateOf } from "./states.js";
import { loadTexts, t } from "./texts.js";
import { applyTheme } from "./theme.js";

const Palette = lazily(() => import("./palette.js").then((found) => found.Palette));
const SHOWN = { chat: Chat,
  models: lazily(() => import("./models.js").then((found) => found.Models)),
  monitor: lazily(() => import("./monitor.js").then((found) => found.Monitor)),
  settings: lazily(() => import("./settings.js").then((found) => found.Settings)) };
const ICONS = { chat: "message-square", models: "boxes", monitor: "activity", settings: "settings" };
const EVERY_MS = 2000;

// The daemon's status, asked again every two seconds while somebody looks.
function useStatus() {
  const [status, setStatus] = useState({ link: "asking", models: [], downloads: [] });
  useEffect(() => {
    let timer;
    let latest = 0;
    const ask = async () => {
      clearTimeout(timer);
      if (document.hidden) return;
      const turn = ++latest;
      let next;
      try {
        const found = await call("status");
        next = () => { remember(found); setStatus({ link: "up", ...found }); };
      } catch (error) {
        const link = error.status === 401 ? "locked" : error.status ? "failed" : "away";
        next = () => setStatus((old) => ({ ...old, link }));
      }
      if (turn !== latest) return; // asked again meanwhile: that answer is newer
      next();
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
  const refused = Boolean(localStorage.getItem("key"));
  return html`<main><form class="lock card" onSubmit=${unlock}><h1>${t("lockTitle")}</h1>
    ${refused && html`<p class="error notice" role="alert">${t("lockRefused")}</p>`}
    <p class="dim">${t("lockText")}</p>
    <input name="key" type="password" autofocus aria-label=${t("apiKey")} required />
    <button class="main">${t("continue")}</button></form></main>`;
}

function Rail({ view, status }) {
  const [tone, text] = stateOf(status);
  return html`<nav class="rail" aria-label=${t("sections")}>
    <a class="brand" href="#chat" aria-label="swiftlm"><img src="web/icon.svg" alt="" /></a>
    ${VIEWS.map((name) => html`<a href=${`#${name}`} aria-current=${name === view ? "page" : null}>
      <span class="pill"><${Icon} name=${ICONS[name]} /></span><span>${t(name)}</span></a>`)}
    <span class=${`state ${tone}`} role="status">${text}</span></nav>`;
}

function App() {
  const status = useStatus();
  const [{ view }, setPlace] = useState(place());
  const [searching, setSearching] = useState(false);
  // With the drawing, not after it: an address that is changed in between would be missed.
  useLayoutEffect(() => {
    addEventListener("hashchange", () => {
      const there = place();
      if (there.view === "chat" && there.path) open(there.path);
      setPlace(there);
    });
    addEventListener("keydown", (event) => {
      // By the place of the key: with Alt a Mac writes another character.
      const name = VIEWS[Number(event.code.match(/^Digit(\d)$/)?.[1]) - 1];
      if (name && event.altKey) { event.preventDefault(); go(name); }
      if (event.code === "KeyK" && (event.metaKey || event.ctrlKey)) { event.preventDefault(); setSearching(true); }
    });
  }, []);
  const token = pairingToken();
  if (token) return html`<${Pair} token=${token} />`;
  if (status.link === "locked") return html`<${Lock} />`;
  const View = SHOWN[view];
  return html`<${Rail} view=${view} status=${status} /><div class="page">
    ${status.link === "away" && html`<p class="away" role="alert">${t("awayText")}</p>`}
    <main class=${view}><${View} status=${status} onSearch=${() => setSearching(true)} /></main></div>
    ${searching && html`<${Palette} status=${status} onClose=${() => setSearching(false)} />`}`;
}

applyTheme();
await loadTexts();
start(place().view === "chat" ? place().path : "");
render(html`<${App} />`, document.getElementById("app"));
navigator.serviceWorker?.register("sw.js").catch(() => {});
