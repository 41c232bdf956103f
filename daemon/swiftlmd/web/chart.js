// A line over time with its axes; the value under the pointer, or by the arrow keys.
import { html, useState } from "./vendor/htm-preact.js";
import { t } from "./texts.js";

const LINES = 4;

// The next round number above: 1, 2, 4, 5 or 8 times a power of ten.
export function roundTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((top) => top >= value * 0.999);
}

const ago = (s) => (s >= 120 ? `${Math.round(s / 6) / 10} min` : `${Math.round(s)} s`);

export function Chart({ name, samples, of, show, span, top: fixed }) {
  const [at, setAt] = useState(null);
  const values = samples.map((sample) => sample[of] || 0);
  const most = Math.max(0, ...values);
  const top = fixed || roundTop(most || 1);
  const last = samples.at(-1)?.at || 0;
  const x = (sample) => 100 * (1 - (last - sample.at) / span);
  const y = (value) => 100 - (100 * value) / top;
  const points = samples.map((sample, index) => `${x(sample).toFixed(2)},${y(values[index]).toFixed(2)}`);
  const first = samples.length ? x(samples[0]) : 100;
  const seen = at !== null && samples[at];
  const latest = show(values.at(-1) || 0);
  const under = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const part = (100 * (event.clientX - box.left)) / box.width;
    let best = 0;
    samples.forEach((sample, index) => { if (Math.abs(x(sample) - part) < Math.abs(x(samples[best]) - part)) best = index; });
    setAt(samples.length ? best : null);
  };
  const onKey = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !samples.length) return;
    event.preventDefault();
    setAt(Math.min(samples.length - 1, Math.max(0, (at ?? samples.length) + step)));
  };
  return html`<section class="card tile"><div class="tile-head"><span class="dim">${name}</span><b>${latest}</b></div>
    <div class="plot" tabindex="0" role="img" aria-label=${t("chartOf", { name, latest, most: show(most) })}
      onPointerMove=${under} onPointerLeave=${() => setAt(null)} onKeyDown=${onKey} onBlur=${() => setAt(null)}>
      <div class="axis">${[top, top / 2, 0].map((value) => html`<span>${show(value)}</span>`)}</div>
      <div class="area"><svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">
        ${Array.from({ length: LINES + 1 }, (_, line) => html`<line class="grid" x1="0" x2="100" y1=${(100 / LINES) * line} y2=${(100 / LINES) * line} />`)}
        ${samples.length > 1 && html`<polygon points=${`${first},100 ${points.join(" ")} 100,100`} /><polyline points=${points.join(" ")} />`}
        ${seen && html`<line class="cursor" x1=${x(seen)} x2=${x(seen)} y1="0" y2="100" />`}</svg>
        ${seen && html`<span class="point" style=${{ left: `${x(seen)}%`, top: `${y(values[at])}%` }}></span>
          <span class=${`tip ${x(seen) > 50 ? "before" : ""}`} role="status" style=${{ left: `${x(seen)}%` }}><b>${show(values[at])}</b> ${t("ago", { time: ago(last - seen.at) })}</span>`}</div>
      <div class="times"><span>−${ago(span)}</span><span>−${ago(span / 2)}</span><span>${t("now")}</span></div></div></section>`;
}
