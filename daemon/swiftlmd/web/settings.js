import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { Keys } from "./keys.js";
import { Network } from "./network.js";

function Entry({ entry, onChanged }) {
  const [note, setNote] = useState("");
  const change = async (request) => {
    try {
      await call("set_config", { key: entry.key, ...request });
      setNote(entry.needs_restart ? "Saved; counts after a restart." : "Saved.");
      onChanged();
    } catch (error) { setNote(error.message); }
  };
  return html`<div class="entry"><div class="grow"><label for=${entry.key}>${entry.key}</label>
      <p class="dim">${entry.description}</p>${note && html`<p role="status">${note}</p>`}</div>
    <div><input id=${entry.key} value=${entry.value} onChange=${(event) => change({ value: event.target.value })} />
      <small class="dim">from ${entry.origin}${entry.origin === "file" && html` · <button class="link"
        aria-label=${`Reset ${entry.key}`} onClick=${() => change({ unset: true })}>reset</button>`}</small></div></div>`;
}

function Options({ status }) {
  const [reply, setReply] = useState({ entries: [], path: "" });
  const [error, setError] = useState("");
  const [filter, setFilter] = useState("");
  const ask = () => call("get_config").then((found) => { setReply(found); setError(""); })
    .catch((failure) => setError(failure.message));
  useEffect(() => { if (status.link !== "away") ask(); }, [status.link]);
  const shown = reply.entries.filter((entry) => `${entry.key} ${entry.description}`.toLowerCase()
    .includes(filter.toLowerCase()));
  return html`<div class="row head"><p class="dim">${reply.path}</p>
    <input type="search" aria-label="Filter the settings" placeholder="Filter"
      onInput=${(event) => setFilter(event.target.value)} /></div>
    ${error && html`<p class="error">${error}</p>`}
    <section class="card">${shown.map((entry) => html`<${Entry} key=${entry.key} entry=${entry} onChanged=${ask} />`)}</section>`;
}

const PAGES = { Options, Keys, Network };

export function Settings({ status }) {
  const [page, setPage] = useState("Options");
  const Page = PAGES[page];
  return html`<div class="row head"><h1>Settings</h1><div class="row" role="group" aria-label="Pages of settings">
    ${Object.keys(PAGES).map((name) => html`<button aria-pressed=${name === page}
      onClick=${() => setPage(name)}>${name}</button>`)}</div></div><${Page} status=${status} />`;
}
