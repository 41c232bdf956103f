// Finding models: the catalogue, or the hub by words, each with whether it fits this machine.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { call, changed, operation } from "./api.js";
import { bytes, percent, seconds } from "./format.js";
import { Icon } from "./icons.js";
import { Traits } from "./picker.js";
import { t } from "./texts.js";

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
  const failed = one.state === "failed";
  const resume = async () => {
    try { for await (const _ of operation("pull", { model: one.model })) changed(); } catch { /* its status says why */ }
  };
  return html`<article class="download"><${Ring} part=${part} /><div class="grow"><h3>${one.model}</h3>
    <p class="dim">${one.state === "queued" ? t("queued") : html`${t("doneOf", { done: bytes(one.done_bytes), all: bytes(one.total_bytes) })} · ${bytes(one.bytes_per_s)}/s
    ${one.eta_s > 0 && ` · ${t("timeLeft", { time: seconds(one.eta_s) })}`}`}</p>
    ${one.error && html`<p class="error">${one.error}</p>`}</div>
    ${failed ? html`<button onClick=${resume}><${Icon} name="play" />${t("resume")}</button>`
    : html`<button onClick=${cancel}><${Icon} name="pause" />${t("pause")}</button>`}</article>`;
}

const rate = (value) => (value >= 10 ? Math.round(value) : Number(value.toPrecision(2)));

const speed = (fit) => (fit?.decode_high
  ? t("tokensPerSecond", { speed: t("range", { low: rate(fit.decode_low), high: rate(fit.decode_high) }) }) : "");

function Fit({ fit }) {
  if (!fit?.verdict) return null;
  const needs = fit.needed_bytes ? ` · ${fit.estimated ? `${t("about")} ` : ""}${bytes(fit.needed_bytes)}` : "";
  return html`<span class="badge ${TONES[fit.verdict] || ""}" title=${fit.detail}>${t(`fit_${fit.verdict}`)}${needs}</span>`;
}

function Offer({ offer, coming, onPull }) {
  const traits = [offer.quantization, bytes(offer.size_bytes), offer.licence,
    offer.gated && t("gated")].filter((part) => part && part !== "0");
  return html`<li class="offer"><div class="grow"><b>${offer.title || offer.model}</b><${Traits} model=${offer} />
      ${offer.title && html`<small class="dim">${offer.model}</small>`}<small class="dim">${[...traits, speed(offer.fit)].filter(Boolean).join(" · ")}</small></div>
    <${Fit} fit=${offer.fit} />${offer.here ? html`<span class="dim">${t("here")}</span>`
      : coming ? html`<span class="dim">${t("downloading")}</span>`
      : html`<button onClick=${() => onPull(offer.model)} aria-label=${t("downloadModel", { model: offer.model })}><${Icon} name="download" />${t("download")}</button>`}</li>`;
}

const PURPOSES = ["largest", "fastest", "agents"];

// One model may be best for several purposes.
function Best({ models, onPull }) {
  const rows = PURPOSES.map((purpose) => [t(`best_${purpose}`), models.find((one) => one.best_for?.includes(purpose))])
    .filter(([, one]) => one);
  if (!rows.length) return null;
  return html`<ul class="offers bests" aria-label=${t("bestModels")}>${rows.map(([title, one]) => html`
    <li class="offer best"><div class="grow"><small class="dim">${title}</small><b>${one.title || one.model}</b>
      <small class="dim">${[speed(one.fit), one.model].filter(Boolean).join(" · ")}</small></div><${Fit} fit=${one.fit} />
      ${one.here ? html`<span class="dim">${t("here")}</span>` : html`<button onClick=${() => onPull(one.model)}
        aria-label=${t("downloadBest", { model: one.model, title: title.toLowerCase() })}><${Icon} name="download" />${t("download")}</button>`}</li>`)}</ul>`;
}

export function Hub({ link, downloads }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [note, setNote] = useState("");
  const [step, setStep] = useState(null);
  const latest = useRef(0);
  const search = async (words) => {
    const turn = ++latest.current;
    setNote(t("searching"));
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
  return html`<section class="card"><h2>${t("findModel")}</h2><form class="row" onSubmit=${submit}>
      <div class="searchbox grow"><${Icon} name="search" /><input type="search" value=${text} aria-label=${t("searchHub")}
        placeholder=${t("searchHubWords")} onInput=${(event) => setText(event.target.value)} /></div>
      <button class=${named ? "" : "main"}>${t("search")}</button>
      ${named && html`<button class="main" name="pull">${t("download")}</button>`}</form>
    ${step && html`<p class="dim" role="status">${step.stage} ${percent(step.fraction)}</p>`}
    ${note && html`<p class="notice" role="status">${note}</p>`}
    ${found && html`<${Best} models=${found} onPull=${pull} />`}
    ${found && html`<ul class="offers" tabindex="0" aria-label=${t("foundModels")}>${found.map((offer) => html`
      <${Offer} key=${offer.model} offer=${offer} coming=${downloads.some((one) => one.model === offer.model && one.state !== "failed")} onPull=${pull} />`)}
      ${!found.length && html`<li class="dim">${t("nothingRuns")}</li>`}</ul>`}</section>`;
}
