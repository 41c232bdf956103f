import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { Chat } from "./chat.js";
import { Models } from "./models.js";
import { Monitor } from "./monitor.js";
import { Settings } from "./settings.js";

const VIEWS = { chat: Chat, models: Models, monitor: Monitor, settings: Settings };
const hash = () => (location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "chat");

// The daemon's status, asked again every two seconds while somebody looks.
function useStatus() {
  const [status, setStatus] = useState({ link: "asking", models: [], downloads: [] });
  useEffect(() => {
    let timer;
    const ask = async () => {
      clearTimeout(timer);
      if (document.hidden) return;
      try {
        setStatus({ link: "up", ...await call("status") });
      } catch (error) {
        const link = error.status === 401 ? "locked" : error.status ? "failed" : "away";
        setStatus((old) => ({ ...old, link }));
      }
      timer = setTimeout(ask, 2000);
    };
    ask();
    document.addEventListener("visibilitychange", ask);
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
  return html`<form class="lock card" onSubmit=${unlock}><h1>This service needs a key</h1>
    <p class="dim">It stays in this browser.</p>
    <input name="key" type="password" autofocus aria-label="API key" required />
    <button class="main">Continue</button></form>`;
}

export function stateOf(status) {
  if (status.link === "asking") return ["quiet", "Connecting"];
  if (status.link === "away") return ["bad", "Daemon away"];
  if (status.link !== "up") return ["bad", "Not answering"];
  const loading = status.models.find((model) => model.state === "loading");
  const download = status.downloads.find((one) => one.state !== "failed" && one.total_bytes > one.done_bytes);
  if (status.state === "draining") return ["warn", "Restarting"];
  if (loading) return ["warn", `${loading.load_stage || "Loading"} ${Math.round(loading.load_fraction * 100)} %`];
  if (status.in_flight) return ["busy", `Busy · ${status.in_flight}`];
  if (download) return ["warn", "Downloading"];
  return status.models.some((model) => model.state === "ready") ? ["good", "Ready"] : ["quiet", "No model loaded"];
}

function App() {
  const status = useStatus();
  const [view, setView] = useState(hash());
  useEffect(() => {
    addEventListener("hashchange", () => setView(hash()));
    addEventListener("keydown", (event) => {
      const name = Object.keys(VIEWS)[Number(event.key) - 1];
      if (name && event.altKey) location.hash = name;
    });
  }, []);
  if (status.link === "locked") return html`<${Lock} />`;
  const [tone, text] = stateOf(status);
  const View = VIEWS[view];
  return html`<header><a class="brand" href="#chat"><img src="/web/icon.svg" alt="" />swiftlm</a>
    <nav aria-label="Sections">${Object.keys(VIEWS).map((name) => html`<a href=${`#${name}`}
      aria-current=${name === view ? "page" : null}>${name}</a>`)}</nav>
    <span class="state ${tone}" role="status">${text}</span></header>
    ${status.link === "away" && html`<p class="away" role="alert">The daemon is away. Your
      conversations are here; the page goes on by itself when it is back.</p>`}
    <main class=${view}><${View} status=${status} /></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
navigator.serviceWorker?.register("/sw.js").catch(() => {});
