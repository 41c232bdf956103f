// What the daemon is doing, in a word for the rail and in a line where it matters.
import { html } from "./vendor/htm-preact.js";
import { bytes, left, percent, seconds } from "./format.js";
import { Icon } from "./icons.js";
import { t } from "./texts.js";

const loadingOf = (status) => status.models.find((model) => model.state === "loading");
const downloadOf = (status) => status.downloads.find(
  (one) => one.state !== "failed" && one.total_bytes > one.done_bytes);

export function stateOf(status) {
  if (status.link === "asking") return ["quiet", t("connecting")];
  if (status.link === "away") return ["bad", t("away")];
  if (status.link !== "up") return ["bad", t("notAnswering")];
  const loading = loadingOf(status);
  if (status.state === "draining") return ["warn", t("restarting")];
  if (loading) return ["warn", `${loading.load_stage || t("loading")} ${percent(loading.load_fraction)}`];
  if (status.in_flight) return ["busy", t("busy", { n: status.in_flight })];
  if (downloadOf(status)) return ["warn", t("downloading")];
  return status.models.some((model) => model.state === "ready") ? ["good", t("ready")] : ["quiet", t("noModelLoaded")];
}

function Progress({ text, part }) {
  return html`<div class="notice"><label class="meter">${text}
    <progress max="1" value=${part}></progress></label></div>`;
}

// Above the composer: what a question has to wait for. Nothing while all is well.
export function Notice({ status }) {
  if (status.link !== "up") return null;
  if (status.state === "draining") return html`<p class="notice" role="status">${t("drainingText")}</p>`;
  const loading = loadingOf(status);
  if (loading) {
    return html`<${Progress} part=${loading.load_fraction} text=${t("loadingModel", { model: loading.model,
      stage: loading.load_stage || t("starting"), part: percent(loading.load_fraction) })
        + left(`${loading.model} ${loading.load_stage}`, loading.load_fraction)} />`;
  }
  const download = downloadOf(status);
  if (!download) return null;
  const rest = download.eta_s > 0 ? ` · ${t("timeLeft", { time: seconds(download.eta_s) })}` : "";
  return html`<${Progress} part=${download.done_bytes / download.total_bytes}
    text=${`${t("downloadingModel", { model: download.model })} · ${bytes(download.bytes_per_s)}/s${rest}`} />`;
}

const EXAMPLES = [["lightbulb", "Explain"], ["code-xml", "Code"], ["pencil", "Write"], ["list", "Plan"]];

export function Welcome({ status, model, onExample }) {
  if (status.link === "asking") return null;
  if (status.link === "up" && !status.models.length) {
    return html`<div class="empty"><img class="logo" src="web/icon.svg" alt="" /><h1>${t("noModelTitle")}</h1>
      <p>${t("noModelText")}</p><p><a class="button main" href="#models"><${Icon} name="download" />${t("getModel")}</a></p></div>`;
  }
  const loaded = status.models.some((one) => one.state === "ready");
  return html`<div class="empty"><img class="logo" src="web/icon.svg" alt="" /><h1>${t("welcome")}</h1>
    <p>${loaded ? t("answersFrom", { model: model.split("/").pop() }) : t("loadsFirst")}</p>
    <div class="examples">${EXAMPLES.map(([icon, name]) => html`<button onClick=${() => onExample(t(`example${name}Text`))}>
      <${Icon} name=${icon} /><b>${t(`example${name}`)}</b><span class="dim">${t(`example${name}Text`)}</span></button>`)}</div>
    <p class="keys"><span><kbd>Enter</kbd> ${t("keySends")}</span><span><kbd>Shift Enter</kbd> ${t("keyBreaks")}</span>
      <span><kbd>Esc</kbd> ${t("keyStops")}</span><span><kbd>/</kbd> ${t("keyWrites")}</span><span><kbd>⌘K</kbd> ${t("keyFinds")}</span></p></div>`;
}
