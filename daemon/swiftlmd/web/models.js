import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call, changed, operation } from "./api.js";
import { bytes, left, percent } from "./format.js";
import { Download, Hub } from "./hub.js";
import { Plan } from "./plan.js";

const TONES = { ready: "good", failed: "bad", broken: "bad", loading: "warn" };

function Actions({ model, loading, planned, acts }) {
  if (model.state === "ready") {
    return html`<button onClick=${acts.unload}>Unload</button>
      <button onClick=${acts.pin} aria-pressed=${model.pinned}>${model.pinned ? "Unpin" : "Pin"}</button>`;
  }
  if (loading) return null;
  // What a download has left lacks files; another one goes on with it.
  if (model.state === "broken" && model.source === "hub") {
    return html`<button class="main" onClick=${acts.resume}>Resume</button>
      <button onClick=${acts.remove}>Remove</button>`;
  }
  return html`<button class="main" onClick=${() => acts.load()}>Load</button>
    <button aria-expanded=${planned} onClick=${acts.plan}>Plan</button>
    ${model.source !== "built-in" && html`<button onClick=${acts.remove}>Remove</button>`}`;
}

function Card({ model, budget }) {
  const [planned, setPlanned] = useState(false);
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
    remove: () => confirm(`Remove ${model.model} from this disk?`)
      && attempt(() => call("remove_model", named)),
  };
  const loading = progress || (model.state === "loading"
    && { stage: model.load_stage, fraction: model.load_fraction });
  const held = model.footprint_bytes || model.priced_bytes;
  const wrong = error || model.error;
  const state = loading ? "loading" : model.state;
  return html`<article class="card"><div class="row head"><h2>${model.model}</h2>
      <span class="state ${TONES[state] || "quiet"}">${state}</span></div>
    <p class="dim">${[bytes(model.size_bytes), model.quantization, model.model_type,
      model.context && `${model.context} tokens`, model.vision && "sees",
      model.tools && "tools", model.licence, model.pinned && "pinned"].filter(Boolean).join(" · ")}</p>
    ${model.state === "ready" && budget > 0 && html`<label class="meter">${bytes(held)} of ${bytes(budget)}
      <meter max=${budget} value=${held}></meter></label>`}
    ${loading && html`<label class="meter">${loading.stage || "starting"} ${percent(loading.fraction)}${
      left(`${model.model} ${loading.stage} card`, loading.fraction || 0)}
      <progress max="1" value=${loading.fraction || 0}></progress></label>`}
    ${wrong && html`<div class="error notice" role="alert"><p>${wrong}</p>
      ${!planned && model.state !== "broken" && html`<button onClick=${acts.plan}>See what fits</button>`}</div>`}
    <div class="row"><${Actions} model=${model} loading=${loading} planned=${planned} acts=${acts} /></div>
    ${planned && html`<${Plan} model=${model.model} onLoad=${acts.load} />`}</article>`;
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
  return html`<h1>Models</h1>${status.downloads.map((one) => html`<${Download} key=${one.model} one=${one} />`)}
    <div class="cards">${all.map((model) => html`<${Card} key=${model.model} model=${model}
      budget=${status.machine?.budget_bytes || 0} />`)}</div>
    ${cached && !all.length && html`<div class="empty"><p>Nothing here yet. Download a model below.</p></div>`}
    <${Hub} link=${status.link} />`;
}
