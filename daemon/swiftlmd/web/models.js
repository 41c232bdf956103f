import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call, changed, operation } from "./api.js";
import { bytes, left, percent } from "./format.js";
import { Download, Hub } from "./hub.js";
import { Icon, IconButton } from "./icons.js";
import { Plan } from "./plan.js";
import { Confirm } from "./sheet.js";
import { t } from "./texts.js";

const TONES = { ready: "good", failed: "bad", broken: "bad", loading: "warn" };
const isPartOnDisk = (model) => model.state === "broken" && model.source === "hub";

function Actions({ model, loading, planned, acts }) {
  const remove = html`<${IconButton} icon="trash-2" name=${t("remove")} onClick=${acts.askRemove} />`;
  if (model.state === "ready") {
    return html`<button onClick=${acts.unload}>${t("unload")}</button>
      <button onClick=${acts.pin} aria-pressed=${model.pinned}><${Icon} name=${model.pinned ? "pin-off" : "pin"} />${t(model.pinned ? "unpin" : "pin")}</button>`;
  }
  if (loading) return null;
  // What a download has left lacks files; another one goes on with it.
  if (isPartOnDisk(model)) {
    return html`<button class="main" onClick=${acts.resume}><${Icon} name="play" />${t("resume")}</button><span class="grow"></span>${remove}`;
  }
  return html`<button class="main" onClick=${() => acts.load()}>${t("load")}</button>
    <button aria-expanded=${planned} onClick=${acts.plan}><${Icon} name="gauge" />${t("plan")}</button>
    <span class="grow"></span>${model.source !== "built-in" && remove}`;
}

export const Tile = ({ name }) => html`<span class="tile-mark" aria-hidden="true">${name.split("/").pop().slice(0, 2)}</span>`;

function Card({ model, budget }) {
  const [planned, setPlanned] = useState(false);
  const [asked, setAsked] = useState(false);
  const [progress, setProgress] = useState(null);
  const [error, setError] = useState("");
  const attempt = async (work) => {
    setError("");
    try { await work(); } catch (failure) { setError(failure.message); }
    setProgress(null);
    changed();
  };
  const named = { model: model.model };
  const acts = {
    plan: () => setPlanned(!planned),
    load: (options = {}) => attempt(async () => {
      setPlanned(false);
      for await (const event of operation("load", { ...named, options })) setProgress(event);
    }),
    resume: () => attempt(async () => {
      for await (const event of operation("pull", named)) { setProgress(event); changed(); }
    }),
    unload: () => attempt(() => call("unload", named)),
    pin: () => attempt(() => call("pin", { ...named, pinned: !model.pinned })),
    askRemove: () => setAsked(true),
    remove: () => attempt(() => call("remove_model", named)),
  };
  const loading = progress || (model.state === "loading"
    && { stage: model.load_stage, fraction: model.load_fraction });
  const held = model.footprint_bytes || model.priced_bytes;
  const wrong = error || model.error;
  const paused = isPartOnDisk(model) && !loading;
  const state = loading ? "loading" : paused ? "paused" : model.state;
  const speed = model.stats?.decode_tokens_per_s;
  return html`<article class="card model"><div class="row head"><${Tile} name=${model.model} /><h2 class="grow">${model.model}</h2>
      <span class=${`state ${paused ? "warn" : TONES[state] || "quiet"}`}>${t(`state_${state || "cached"}`)}</span></div>
    <p class="dim facts">${[bytes(model.size_bytes), model.quantization, model.model_type,
      model.context && t("tokens", { n: model.context }), model.vision && t("vision"),
      model.tools && t("tools"), model.licence, speed > 0 && t("tokensPerSecond", { speed: speed.toFixed(1) }),
      model.pinned && t("pinned")].filter(Boolean).join(" · ")}</p>
    ${model.state === "ready" && budget > 0 && html`<label class="meter">${t("ofBudget", { held: bytes(held), budget: bytes(budget) })}
      <progress max=${budget} value=${held}></progress></label>`}
    ${loading && html`<label class="meter">${loading.stage || t("starting")} ${percent(loading.fraction)}${
      left(`${model.model} ${loading.stage} card`, loading.fraction || 0)}
      <progress max="1" value=${loading.fraction || 0}></progress></label>`}
    ${wrong && html`<div class=${`notice ${paused ? "" : "error"}`} role="alert"><div><p>${wrong}</p>
      ${!planned && model.state !== "broken" && html`<button onClick=${acts.plan}>${t("whatFits")}</button>`}</div></div>`}
    <div class="row acts-row"><${Actions} model=${model} loading=${loading} planned=${planned} acts=${acts} /></div>
    ${planned && html`<${Plan} model=${model.model} onLoad=${acts.load} />`}
    ${asked && html`<${Confirm} act=${t("remove")} text=${t("removeQuestion", { model: model.model, size: bytes(model.size_bytes) })}
      onDone=${acts.remove} onCancel=${() => setAsked(false)} />`}</article>`;
}

export function Models({ status }) {
  const [cached, setCached] = useState(null);
  useEffect(() => {
    if (status.link === "up") call("list_models").then((reply) => setCached(reply.models)).catch(() => {});
  }, [status.link, status.models.length, status.downloads.length]);
  const live = new Map(status.models.map((model) => [model.model, model]));
  // What is on its way is half a model on disk, and shown as a download alone.
  const coming = new Set(status.downloads.filter((one) => one.state !== "failed").map((one) => one.model));
  const listed = cached || [];
  const all = [...listed.map((model) => live.get(model.model) || model),
    ...status.models.filter((model) => !listed.some((one) => one.model === model.model))]
    .filter((model) => !coming.has(model.model));
  return html`<h1>${t("models")}</h1>${status.downloads.length > 0 && html`<section class="card downloads"><h2>${t("downloads")}</h2>
      ${status.downloads.map((one) => html`<${Download} key=${one.model} one=${one} />`)}</section>`}
    <div class="cards">${all.map((model) => html`<${Card} key=${model.model} model=${model}
      budget=${status.machine?.budget_bytes || 0} />`)}</div>
    ${cached && !all.length && html`<div class="empty small"><${Icon} name="boxes" /><p>${t("noModelsYet")}</p></div>`}
    <${Hub} link=${status.link} models=${all} downloads=${status.downloads} />`;
}
