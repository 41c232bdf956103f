import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { call, operation } from "./api.js";
import { bytes, percent, seconds } from "./format.js";

const RING = 2 * Math.PI * 20;

function Ring({ part }) {
  return html`<svg class="ring" viewBox="0 0 48 48" role="img" aria-label=${percent(part)}>
    <circle cx="24" cy="24" r="20" /><circle class="done" cx="24" cy="24" r="20"
      stroke-dasharray=${`${RING * part} ${RING}`} transform="rotate(-90 24 24)" />
    <text x="24" y="28">${Math.round(part * 100)}</text></svg>`;
}

// The planner's answer as rows: sizes by name, then what it decided.
function PlanTable({ plan }) {
  const rows = Object.entries(plan).filter(([, value]) => ["string", "number", "boolean"]
    .includes(typeof value) && value !== "");
  const show = (name, value) => (name.endsWith("bytes") ? bytes(value) : String(value));
  return html`<table><tbody>${rows.map(([name, value]) => html`<tr><th scope="row">
    ${name.replace(/_bytes$/, "").replaceAll("_", " ")}</th><td>${show(name, value)}</td></tr>`)}
    ${(plan.terms || []).map((term) => html`<tr><th scope="row">${term.kind}
      <span class="dim"> ${term.note}</span></th><td>${bytes(term.bytes)}</td></tr>`)}
    </tbody></table>`;
}

function Plan({ model, onLoad }) {
  const [options, setOptions] = useState({});
  const [answer, setAnswer] = useState({});
  useEffect(() => {
    let current = true;
    call("plan", { model, options })
      .then((reply) => current && setAnswer({ plan: JSON.parse(reply.plan) }))
      .catch((error) => current && setAnswer({ error: error.message }));
    return () => { current = false; };
  }, [options]);
  const set = (name, value) => setOptions({ ...options, [name]: value || undefined });
  return html`<div class="plan"><div class="row"><label>Context<input type="number" min="256" step="256"
      placeholder="default" onChange=${(event) => set("context", Number(event.target.value))} /></label>
    <label>KV format<select onChange=${(event) => set("kv", event.target.value)}>
      <option value="">default</option>${["fp16", "turbo", "k4v3", "k4v4", "k8v3", "spec"].map((kv) => html`
      <option>${kv}</option>`)}</select></label></div>
    ${answer.error && html`<p class="error">${answer.error}</p>`}
    ${answer.plan && html`<${PlanTable} plan=${answer.plan} />`}
    <button class="main" onClick=${() => onLoad(options)}>Load with this</button></div>`;
}

function Card({ model, budget }) {
  const [planned, setPlanned] = useState(false);
  const [progress, setProgress] = useState(null);
  const [error, setError] = useState("");
  const attempt = async (work) => {
    setError("");
    try { await work(); } catch (failure) { setError(failure.message); }
    setProgress(null);
  };
  const load = (options = {}) => attempt(async () => {
    setPlanned(false);
    for await (const event of operation("load", { model: model.model, options })) setProgress(event);
  });
  const unload = () => attempt(() => call("unload", { model: model.model }));
  const remove = () => confirm(`Remove ${model.model} from this disk?`)
    && attempt(() => call("remove_model", { model: model.model }));
  const loading = progress || (model.state === "loading"
    && { stage: model.load_stage, fraction: model.load_fraction });
  const held = model.footprint_bytes || model.priced_bytes;
  return html`<article class="card"><div class="row head"><h2>${model.model}</h2>
      <span class="state ${{ ready: "good", failed: "bad", broken: "bad" }[model.state] || "quiet"}">
      ${model.state}</span></div>
    <p class="dim">${[bytes(model.size_bytes), model.quantization, model.model_type,
      model.context && `${model.context} tokens`, model.pinned && "pinned"].filter(Boolean).join(" · ")}</p>
    ${model.state === "ready" && budget > 0 && html`<label class="meter">${bytes(held)} of ${bytes(budget)}
      <meter max=${budget} value=${held}></meter></label>`}
    ${loading && html`<label class="meter">${loading.stage} ${percent(loading.fraction)}
      <progress max="1" value=${loading.fraction}></progress></label>`}
    ${(error || model.error) && html`<p class="error" role="alert">${error || model.error}</p>`}
    <div class="row">${model.state === "ready" ? html`<button onClick=${unload}>Unload</button>`
      : !loading && html`<button class="main" onClick=${() => load()}>Load</button>
        <button aria-expanded=${planned} onClick=${() => setPlanned(!planned)}>Plan</button>
        ${model.source !== "built-in" && html`<button onClick=${remove}>Remove</button>`}`}</div>
    ${planned && html`<${Plan} model=${model.model} onLoad=${load} />`}</article>`;
}

function Download({ one }) {
  const part = one.total_bytes ? one.done_bytes / one.total_bytes : 0;
  return html`<article class="card row"><${Ring} part=${part} /><div class="grow"><h2>${one.model}</h2>
    <p class="dim">${bytes(one.done_bytes)} of ${bytes(one.total_bytes)} · ${bytes(one.bytes_per_s)}/s
    ${one.eta_s > 0 && ` · ${seconds(one.eta_s)} left`}</p>
    ${one.error && html`<p class="error">${one.error}</p>`}</div>
    <button onClick=${async () => { for await (const _ of operation("pull", { model: one.model, cancel: true })); }}>
      Cancel</button></article>`;
}

function Pull() {
  const [error, setError] = useState("");
  const [event, setEvent] = useState(null);
  const box = useRef();
  const start = async (submitted) => {
    submitted.preventDefault();
    setError("");
    try {
      for await (const step of operation("pull", { model: box.current.value.trim() })) setEvent(step);
    } catch (failure) { setError(failure.message); }
    setEvent(null);
  };
  return html`<form class="card" onSubmit=${start}><div class="row"><input ref=${box} required class="grow"
    aria-label="Model to download" placeholder="owner/model from the hub" /><button class="main">Download</button></div>
    ${event && html`<p class="dim">${event.stage} ${percent(event.fraction)}</p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}</form>`;
}

export function Models({ status }) {
  const [cached, setCached] = useState([]);
  useEffect(() => { call("list_models").then((reply) => setCached(reply.models)).catch(() => {}); },
    [status.models.length, status.downloads.length]);
  const live = new Map(status.models.map((model) => [model.model, model]));
  const all = [...cached.map((model) => live.get(model.model) || model),
    ...status.models.filter((model) => !cached.some((one) => one.model === model.model))];
  return html`<h1>Models</h1><${Pull} />${status.downloads.map((one) => html`<${Download} one=${one} />`)}
    <div class="cards">${all.map((model) => html`<${Card} key=${model.model} model=${model}
      budget=${status.machine?.budget_bytes || 0} />`)}</div>
    ${!all.length && html`<div class="empty"><p>Nothing here yet. Download a model above.</p></div>`}`;
}
