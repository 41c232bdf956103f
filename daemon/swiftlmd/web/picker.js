// The choice of the model: what is loaded first, and of each what it can and what it weighs.
import { html, useState } from "./vendor/htm-preact.js";
import { bytes, percent, shortest } from "./format.js";
import { Icon } from "./icons.js";
import { Sheet } from "./sheet.js";
import { t } from "./texts.js";

const RANK = { ready: 0, loading: 1 };
const TONES = { ready: "good", loading: "warn", failed: "bad", broken: "bad" };
const TRAITS = [["vision", "eye"], ["tools", "wrench"], ["reasoning", "brain"]];

export const Traits = ({ model }) => html`<span class="traits">${TRAITS.filter(([trait]) => model[trait])
  .map(([trait, icon]) => html`<span role="img" aria-label=${t(trait)} title=${t(trait)}><${Icon} name=${icon} /></span>`)}</span>`;

export function ModelButton({ status, model, onClick }) {
  const known = status.models.find((one) => one.model === model);
  const name = model ? shortest(model, status.models) : t("noModel");
  return html`<button class="model-button" aria-haspopup="dialog" aria-label=${t("modelNamed", { model: name })} onClick=${onClick}>
    <i class=${`dot ${TONES[known?.state] || "quiet"}`}></i><span class="name">${name}</span><${Icon} name="chevron-down" /></button>`;
}

function facts(model) {
  const speed = model.stats?.decode_tokens_per_s;
  return [model.state === "loading" ? `${t("loading")} ${percent(model.load_fraction)}` : t(`state_${model.state || "cached"}`),
    model.size_bytes && bytes(model.size_bytes), model.quantization,
    model.context && t("tokens", { n: model.context.toLocaleString() }),
    speed > 0 && t("tokensPerSecond", { speed: speed.toFixed(1) })].filter(Boolean).join(" · ");
}

export function ModelPicker({ status, current, onChoose, onClose }) {
  const [words, setWords] = useState("");
  const shown = status.models.filter((one) => one.model.toLowerCase().includes(words.trim().toLowerCase()))
    .sort((a, b) => (RANK[a.state] ?? 2) - (RANK[b.state] ?? 2));
  const onKey = (event) => {
    if (event.key === "Enter" && shown[0]) { event.preventDefault(); onChoose(shown[0].model); }
    if (event.key === "ArrowDown") { event.preventDefault(); document.querySelector(".picked")?.focus(); }
  };
  const move = (event) => {
    const way = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (way) { event.preventDefault(); event.currentTarget.parentElement[way]?.firstElementChild.focus(); }
  };
  return html`<${Sheet} title=${t("model")} kind="drop" onClose=${onClose}>
    ${status.models.length > 4 && html`<div class="searchbox"><${Icon} name="search" /><input type="search" autofocus
      aria-label=${t("searchModels")} placeholder=${t("searchModels")} value=${words} onKeyDown=${onKey}
      onInput=${(event) => setWords(event.target.value)} /></div>`}
    <ul class="picks">${shown.map((one) => html`<li key=${one.model}><button class="picked" autofocus=${one.model === current}
        aria-current=${one.model === current ? "true" : null} onKeyDown=${move} onClick=${() => onChoose(one.model)}>
      <i class=${`dot ${TONES[one.state] || "quiet"}`}></i><span class="grow"><b>${one.model}</b><small class="dim">${facts(one)}</small>
        ${one.state === "loading" && html`<progress max="1" value=${one.load_fraction || 0} aria-label=${t("loading")}></progress>`}</span>
      <${Traits} model=${one} />${one.model === current && html`<${Icon} name="check" />`}</button></li>`)}
      ${!shown.length && html`<li class="dim">${t(status.models.length ? "nothingFound" : "noModel")}</li>`}</ul>
    <a class="manage" href="#models" onClick=${onClose}><${Icon} name="boxes" />${t("manageModels")}</a></${Sheet}>`;
}
