// What the daemon is doing, in a word for the header and in a line where it matters.
import { html } from "./vendor/htm-preact.js";
import { bytes, left, percent, seconds } from "./format.js";

const loadingOf = (status) => status.models.find((model) => model.state === "loading");
const downloadOf = (status) => status.downloads.find(
  (one) => one.state !== "failed" && one.total_bytes > one.done_bytes);

export function stateOf(status) {
  if (status.link === "asking") return ["quiet", "Connecting"];
  if (status.link === "away") return ["bad", "Daemon away"];
  if (status.link !== "up") return ["bad", "Not answering"];
  const loading = loadingOf(status);
  if (status.state === "draining") return ["warn", "Restarting"];
  if (loading) return ["warn", `${loading.load_stage || "Loading"} ${percent(loading.load_fraction)}`];
  if (status.in_flight) return ["busy", `Busy · ${status.in_flight}`];
  if (downloadOf(status)) return ["warn", "Downloading"];
  return status.models.some((model) => model.state === "ready") ? ["good", "Ready"] : ["quiet", "No model loaded"];
}

function Progress({ text, part }) {
  return html`<div class="notice"><label class="meter">${text}
    <progress max="1" value=${part}></progress></label></div>`;
}

// Above the composer: what a question has to wait for. Nothing while all is well.
export function Notice({ status }) {
  if (status.link !== "up") return null;
  if (status.state === "draining") {
    return html`<p class="notice" role="status">The daemon restarts. What is being answered is
      finished first; new questions wait until it is back.</p>`;
  }
  const loading = loadingOf(status);
  if (loading) {
    return html`<${Progress} part=${loading.load_fraction}
      text=${`Loading ${loading.model} · ${loading.load_stage || "starting"} ${percent(loading.load_fraction)}${
        left(`${loading.model} ${loading.load_stage}`, loading.load_fraction)}`} />`;
  }
  const download = downloadOf(status);
  if (!download) return null;
  const rest = download.eta_s > 0 ? ` · ${seconds(download.eta_s)} left` : "";
  return html`<${Progress} part=${download.done_bytes / download.total_bytes}
    text=${`Downloading ${download.model} · ${bytes(download.bytes_per_s)}/s${rest}`} />`;
}

export function Welcome({ status, model }) {
  if (status.link === "asking") return null;
  if (status.link === "up" && !status.models.length) {
    return html`<div class="empty"><h1>No model yet</h1>
      <p>Fetch one in <a href="#models">Models</a>; then ask it anything.</p></div>`;
  }
  const loaded = status.models.some((one) => one.state === "ready");
  return html`<div class="empty"><h1>What is on your mind?</h1><p>${loaded
    ? html`Answers come from <b>${model}</b> on this machine.`
    : "The model loads with your first question."}</p>
    <p class="keys"><kbd>Enter</kbd> sends <kbd>Shift</kbd> <kbd>Enter</kbd> breaks the line
      <kbd>Esc</kbd> stops <kbd>/</kbd> writes <kbd>Alt</kbd> <kbd>N</kbd> starts a new chat</p></div>`;
}
