import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call, operation } from "./api.js";
import { bytes, percent, seconds } from "./format.js";
import { Memory } from "./memory.js";
import { past } from "./samples.js";

const SPANS = { "5 min": 300, "1 h": 3600 };

function Tile({ name, samples, of, show, span }) {
  const values = samples.map((sample) => sample[of] || 0);
  const top = Math.max(...values, 1e-9) * 1.1;
  const last = samples.at(-1)?.at || 0;
  const points = samples.map((sample, index) => `${200 * (1 - (last - sample.at) / span)},${40 - (38 * values[index]) / top}`);
  const latest = show(values.at(-1) || 0);
  const drawn = samples.length > 1;
  const from = drawn ? points[0].split(",")[0] : 0;
  return html`<section class="card tile"><span class="dim">${name}</span><b>${latest}</b>
    <svg viewBox="0 0 200 42" preserveAspectRatio="none" role="img" aria-label=${`${name}: ${latest}, at most ${show(Math.max(0, ...values))}`}>
      <line x1="0" y1="40.5" x2="200" y2="40.5" />${drawn && html`<polygon points=${`${from},40.5 ${points.join(" ")} 200,40.5`} />
      <polyline points=${points.join(" ")} />`}</svg></section>`;
}

function Requests({ status }) {
  const [found, setFound] = useState([]);
  const ask = () => call("requests").then((reply) => setFound(reply.requests)).catch(() => {});
  useEffect(() => { ask(); }, [status]);
  const cancel = (id) => call("cancel", { request_id: id }).then(ask);
  return html`<section class="card wide"><h2>Requests</h2>${found.length ? html`<table><tbody>
    ${found.map((one) => html`<tr><td>${one.model}</td><td>${one.route}</td><td>${one.state?.phase}</td>
      <td>${one.state?.completion_tokens} tokens</td><td>${seconds(one.state?.age_s || 0)}</td>
      <td><button onClick=${() => cancel(one.request_id)}>Cancel</button></td></tr>`)}</tbody></table>`
    : html`<p class="dim">Nothing is running.</p>`}</section>`;
}

function Logs() {
  const [lines, setLines] = useState([]);
  const [filter, setFilter] = useState("");
  const ask = async () => {
    const found = [];
    try { for await (const { line } of operation("logs", { lines: 200 })) found.push(line); } catch { return; }
    setLines(found);
  };
  useEffect(() => { ask(); }, []);
  const shown = lines.filter((line) => line.toLowerCase().includes(filter.toLowerCase()));
  return html`<section class="card wide"><div class="row"><h2 class="grow">Log</h2><input type="search"
    aria-label="Filter the log" placeholder="Filter" onInput=${(event) => setFilter(event.target.value)} />
    <button onClick=${ask}>Refresh</button></div><pre class="log" tabindex="0">${shown.join("\n") || "Nothing to show."}</pre></section>`;
}

export function Monitor({ status }) {
  const [span, setSpan] = useState("5 min");
  const samples = past();
  const since = (samples.at(-1)?.at || 0) - SPANS[span];
  const shown = samples.filter((sample) => sample.at >= since);
  const tile = (name, of, show) => html`<${Tile} name=${name} of=${of} show=${show} samples=${shown} span=${SPANS[span]} />`;
  const count = (value) => String(value);
  return html`<div class="row head"><h1>Monitor</h1><div class="row" role="group" aria-label="Time shown">
      ${Object.keys(SPANS).map((name) => html`<button aria-pressed=${name === span} onClick=${() => setSpan(name)}>${name}</button>`)}</div></div>
    <div class="cards">${tile("Tokens per second", "speed", (value) => value.toFixed(1))}
    ${tile("Running", "running", count)}${tile("Waiting", "waiting", count)}
    ${tile("Prefix cache hits", "hit_rate", percent)}${tile("Memory in use", "used", bytes)}
    ${samples.at(-1)?.streams && html`${tile("SSD", "ssd", (value) => `${value.toFixed(1)} GB/s`)}
      ${tile("Expert hits", "ssd_hit_rate", percent)}`}
    <${Memory} status=${status} /><${Requests} status=${status} /><${Logs} /></div>`;
}
