// What a load would cost, before it: sliders, the planner's table, and for a refusal its sum and fixes.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { bytes } from "./format.js";
import { t } from "./texts.js";

const KV_FORMATS = ["fp16", "turbo", "k4v3", "k4v4", "k8v3", "spec"];
const LEAST_CONTEXT = 512;
// The flags of `swiftlmctl load` that a fix may name.
const FLAGS = { "--kv": "kv", "--ctx": "context", "--parallel": "parallel",
  "--prefill-chunk": "prefill_chunk", "--stream-experts": "stream_experts",
  "--memory-budget": "memory_budget" };
const NUMBERS = ["context", "parallel", "prefill_chunk"];

// "--kv turbo --ctx 8192" as load options; null for what only the operator can do.
export function optionsOf(fix) {
  const words = fix.replace(/\(.*\)$/, "").trim().split(/\s+/);
  const options = {};
  for (let i = 0; i < words.length; i += 2) {
    const name = FLAGS[words[i]];
    if (!name || words[i + 1] === undefined) return null;
    options[name] = NUMBERS.includes(name) ? Number(words[i + 1]) : words[i + 1];
  }
  return options;
}

function Table({ plan }) {
  const [low, high] = plan.speed?.decode_tokens_s || [];
  return html`<table><tbody>${(plan.terms || []).map((term) => html`<tr><th scope="row">${term.kind}
      <span class="dim"> ${term.note}</span></th><td>${bytes(term.bytes)}</td></tr>`)}
    <tr class="sum"><th scope="row">${t("needed")}</th><td>${bytes(plan.needed_bytes)}</td></tr>
    <tr><th scope="row">${t("available")}</th><td>${bytes(plan.available_bytes)}</td></tr>
    ${high > 0 && html`<tr><th scope="row">${t("speed")} <span class="dim"> ${t(plan.speed.measured ? "measured" : "predicted")}</span>
      </th><td>${t("tokensPerSecond", { speed: `${low} – ${high}` })}</td></tr>`}</tbody></table>`;
}

function Verdict({ plan, onFix }) {
  const refused = plan.strategy === "refused";
  return html`<div class="notice ${refused ? "error" : ""}" role="status"><p>${plan.summary}</p>
    ${refused && html`<p class="row">${(plan.fixes || []).map((fix) => (optionsOf(fix)
      ? html`<button onClick=${() => onFix(optionsOf(fix))}>${fix}</button>` : html`<span>${fix}</span>`))}</p>`}
    ${(plan.warnings || []).map((warning) => html`<p class="dim">${warning}</p>`)}</div>`;
}

// The slider is logarithmic: a context doubles from stop to stop.
function ContextSlider({ plan, chosen, onChange }) {
  const most = plan?.max_context || 131072;
  const value = chosen || plan?.context || LEAST_CONTEXT;
  const stops = Math.max(1, Math.ceil(Math.log2(most / LEAST_CONTEXT)));
  const at = Math.min(stops, Math.max(0, Math.log2(value / LEAST_CONTEXT)));
  const set = (event) => onChange(Math.min(most, LEAST_CONTEXT * 2 ** Number(event.target.value)));
  return html`<label class="slider">${t("context")} <b>${t("tokens", { n: value.toLocaleString() })}</b>
    <input type="range" min="0" max=${stops} step="1" value=${Math.round(at)} aria-valuetext=${t("tokens", { n: value })}
      onChange=${set} /></label>`;
}

function KvSlider({ plan, chosen, onChange }) {
  const value = chosen || plan?.kv || KV_FORMATS[0];
  return html`<label class="slider">${t("kvFormat")} <b>${value}</b><input type="range" min="0"
    max=${KV_FORMATS.length - 1} step="1" value=${Math.max(0, KV_FORMATS.indexOf(value))}
    aria-valuetext=${value} onChange=${(event) => onChange(KV_FORMATS[event.target.value])} /></label>`;
}

export function Plan({ model, onLoad }) {
  const [options, setOptions] = useState({});
  const [{ plan, error }, setAnswer] = useState({});
  useEffect(() => {
    let current = true;
    call("plan", { model, options })
      .then((reply) => current && setAnswer({ plan: JSON.parse(reply.plan) }))
      .catch((failure) => current && setAnswer({ error: failure.message }));
    return () => { current = false; };
  }, [options]);
  const more = (changed) => setOptions({ ...options, ...changed });
  return html`<div class="plan"><div class="sliders">
      <${ContextSlider} plan=${plan} chosen=${options.context} onChange=${(context) => more({ context })} />
      <${KvSlider} plan=${plan} chosen=${options.kv} onChange=${(kv) => more({ kv })} /></div>
    ${error && html`<p class="error notice" role="alert">${error}</p>`}
    ${plan && html`<${Verdict} plan=${plan} onFix=${more} /><${Table} plan=${plan} />`}
    <button class="main" disabled=${plan?.strategy === "refused"} onClick=${() => onLoad(options)}>
      ${t("loadWithThis")}</button></div>`;
}
