// How the model answers in this chat: system prompt, sampling, and presets of both.
import { html, useState } from "./vendor/htm-preact.js";
import * as chat from "./chats.js";
import { Icon, IconButton } from "./icons.js";
import { Sheet } from "./sheet.js";
import { t } from "./texts.js";

// Lowest, highest, step, and where the slider stands while nothing is chosen.
const SLIDERS = { temperature: [0, 2, 0.05, 0.7], top_p: [0, 1, 0.05, 1], min_p: [0, 1, 0.01, 0],
  top_k: [0, 200, 1, 0], repetition_penalty: [0.5, 2, 0.05, 1] };
const NUMBERS = { max_tokens: [1, 131072], seed: [0, 2147483647] };
const KEY = "presets";

const presets = () => { try { return JSON.parse(localStorage.getItem(KEY)) || []; } catch { return []; } };

function Presets({ talk }) {
  const [all, setAll] = useState(presets());
  const [name, setName] = useState("");
  const keep = (list) => { localStorage.setItem(KEY, JSON.stringify(list)); setAll(list); };
  const save = (event) => {
    event.preventDefault();
    const { system, sampling } = talk;
    keep([...all.filter((one) => one.name !== name.trim()), { name: name.trim(), system, sampling }]);
    setName("");
  };
  return html`<section><h3>${t("presets")}</h3><div class="row chips">${all.map((one) => html`<span class="chip">
      <button onClick=${() => chat.change({ ...talk, system: one.system, sampling: one.sampling })}>${one.name}</button>
      <${IconButton} icon="x" name=${t("deletePreset", { name: one.name })} onClick=${() => keep(all.filter((other) => other !== one))} /></span>`)}
      ${!all.length && html`<small class="dim">${t("noPresets")}</small>`}</div>
    <form class="row" onSubmit=${save}><input class="grow" required maxlength="40" value=${name} aria-label=${t("presetName")}
      placeholder=${t("presetName")} onInput=${(event) => setName(event.target.value)} /><button>${t("savePreset")}</button></form></section>`;
}

function Slider({ name, range: [min, max, step, usual], value, onSet }) {
  const clamped = (text) => (text === "" ? undefined : Math.min(max, Math.max(min, Number(text))));
  const set = (event) => onSet(name, clamped(event.target.value));
  return html`<div class="slider"><div class="row"><label class="grow" for=${`n-${name}`}>${t(name)}</label>
      <input id=${`n-${name}`} type="number" min=${min} max=${max} step=${step} placeholder=${t("auto")} value=${value ?? ""} onChange=${set} /></div>
    <input type="range" aria-label=${t("sliderOf", { name: t(name) })} min=${min} max=${max} step=${step} value=${value ?? usual} onInput=${set} /></div>`;
}

function WholeNumber({ name, range: [min, max], value, onSet }) {
  const set = ({ target }) => onSet(name, target.value === "" ? undefined : Math.min(max, Math.max(min, Number(target.value))));
  return html`<div class="row"><label class="grow" for=${`n-${name}`}>${t(name)}</label>
    <input id=${`n-${name}`} type="number" min=${min} max=${max} step="1" placeholder=${t("auto")} value=${value ?? ""} onChange=${set} /></div>`;
}

export function Options({ talk, onClose }) {
  const onSet = (name, value) => chat.change({ ...talk, sampling: { ...talk.sampling, [name]: value } });
  return html`<${Sheet} title=${t("options")} onClose=${onClose}><label class="field">${t("systemPrompt")}
      <textarea value=${talk.system} rows="5" placeholder=${t("systemExample")}
        onInput=${(event) => chat.change({ ...talk, system: event.target.value })} /></label>
    <section class="sliders"><h3>${t("sampling")}</h3>${Object.entries(SLIDERS).map(([name, range]) => html`
      <${Slider} key=${name} name=${name} range=${range} value=${talk.sampling[name]} onSet=${onSet} />`)}
      ${Object.entries(NUMBERS).map(([name, range]) => html`<${WholeNumber} key=${name} name=${name} range=${range}
        value=${talk.sampling[name]} onSet=${onSet} />`)}</section>
    <button class="quiet" onClick=${() => chat.change({ ...talk, sampling: {} })}><${Icon} name="rotate-ccw" />${t("resetSampling")}</button>
    <${Presets} talk=${talk} /></${Sheet}>`;
}
