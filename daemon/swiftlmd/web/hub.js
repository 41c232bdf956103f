// Finding models: the catalogue, or the hub by words, each with whether it fits this machine.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { call, changed, operation } from "./api.js";
import { bytes, percent, seconds } from "./format.js";

const RING = 2 * Math.PI * 20;
const TONES = { fits: "good", tight: "warn", streams: "warn", "too large": "bad" };

function Ring({ part }) {
  return html`<svg class="ring" viewBox="0 0 48 48" role="img" aria-label=${percent(part)}>
    <circle cx="24" cy="24" r="20" /><circle class="done" cx="24" cy="24" r="20"
      stroke-dasharray=${`${RING * part} ${RING}`} transform="rotate(-90 24 24)" />
    <text x="24" y="28">${Math.round(part * 100)}</text></svg>`;
}

export function Download({ one }) {
  const part = one.total_bytes ? one.done_bytes / one.total_bytes : 0;
  const cancel = async () => {
    for await (const _ of operation("pull", { model: one.model, cancel: true }));
    changed();
  };
  return html`<article class="card row"><${Ring} part=${part} /><div class="grow"><h2>${one.model}</h2>
    <p class="dim">${bytes(one.done_bytes)} of ${bytes(one.total_bytes)} · ${bytes(one.bytes_per_s)}/s
    ${one.eta_s > 0 && ` · ${seconds(one.eta_s)} left`}</p>
    ${one.error && html`<p class="error">${one.error}</p>`}</div>
    <button onClick=${cancel}>Cancel</button></article>`;
}

function rate(value) { return value >= 10 ? Math.round(value) : Number(value.toPrecision(2)); }

const speed = (fit) => (fit?.decode_high ? `${rate(fit.decode_low)} to ${rate(fit.decode_high)} tokens/s` : "");

function Fit({ fit }) {
  if (!fit?.verdict) return null;
  const needs = fit.needed_bytes ? ` · ${fit.estimated ? "about " : ""}${bytes(fit.needed_bytes)}` : "";
  return html`<span class="badge ${TONES[fit.verdict] || ""}" title=${fit.detail}>${fit.verdict}${needs}</span>`;
}

function Offer({ offer, onPull }) {
  const traits = [offer.quantization, bytes(offer.size_bytes), offer.licence,
    offer.vision && "sees", offer.tools && "tools", offer.reasoning && "reasons",
    offer.gated && "gated", speed(offer.fit)].filter((part) => part && part !== "0");
  return html`<li class="offer"><div class="grow"><b>${offer.title || offer.model}</b>
      <small class="dim">${offer.model}</small><small class="dim">${traits.join(" · ")}</small></div>
    <${Fit} fit=${offer.fit} />${offer.here ? html`<span class="dim">here</span>`
      : html`<button onClick=${() => onPull(offer.model)} aria-label=${`Download ${offer.model}`}>Download</button>`}</li>`;
}

const PURPOSES = { largest: "Largest that runs well here", fastest: "Fastest here", agents: "Best for agents here" };

// One model may be best for several purposes.
function Best({ models, onPull }) {
  const rows = Object.entries(PURPOSES).map(([purpose, title]) => [title,
    models.find((one) => one.best_for?.includes(purpose))]).filter(([, one]) => one);
  if (!rows.length) return null;
  return html`<ul class="offers" aria-label="Best models for this machine">${rows.map(([title, one]) => html`
    <li class="offer best"><div class="grow"><small class="dim">${title}</small><b>${one.title || one.model}</b>
      <small class="dim">${speed(one.fit)} · ${one.model}</small></div><${Fit} fit=${one.fit} />
      ${one.here ? html`<span class="dim">here</span>` : html`<button onClick=${() => onPull(one.model)}
        aria-label=${`Download ${one.model}, ${title.toLowerCase()}`}>Download</button>`}</li>`)}</ul>`;
}

export function Hub({ link }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [note, setNote] = useState("");
  const [step, setStep] = useState(null);
  const latest = useRef(0);
  const search = async (words) => {
    const turn = ++latest.current;
    setNote("Searching…");
    let models = null;
    let wrong = "";
    try { ({ models } = await call("search", { text: words })); } catch (error) { wrong = error.message; }
    if (turn !== latest.current) return; // a newer search was begun meanwhile
    if (models) setFound(models);
    setNote(wrong);
  };
  const pull = async (model) => {
    setNote("");
    try {
      for await (const event of operation("pull", { model })) setStep(event);
    } catch (error) { setNote(error.message); }
    setStep(null);
    changed();
  };
  const submit = (event) => {
    event.preventDefault();
    const words = text.trim();
    if (event.submitter?.name === "pull") pull(words); else search(words);
  };
  useEffect(() => { if (link === "up" && !found) search(""); }, [link]);
  const named = /^[\w.-]+\/[\w.-]+/.test(text.trim());
  return html`<section class="card"><h2>Find a model</h2><form class="row" onSubmit=${submit}>
      <input class="grow" type="search" value=${text} aria-label="Search the hub"
        placeholder="Words, or owner/model" onInput=${(event) => setText(event.target.value)} />
      <button class=${named ? "" : "main"}>Search</button>
      ${named && html`<button class="main" name="pull">Download</button>`}</form>
    ${step && html`<p class="dim" role="status">${step.stage} ${percent(step.fraction)}</p>`}
    ${note && html`<p class="notice" role="status">${note}</p>`}
    ${found && html`<${Best} models=${found} onPull=${pull} />`}
    ${found && html`<ul class="offers" tabindex="0" aria-label="Found models">${found.map((offer) => html`
      <${Offer} key=${offer.model} offer=${offer} onPull=${pull} />`)}
      ${!found.length && html`<li class="dim">Nothing found that runs here.</li>`}</ul>`}</section>`;
}
