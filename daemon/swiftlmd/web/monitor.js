import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call, operation } from "./api.js";
import { bytes, percent, seconds } from "./format.js";

const sum = (models, name) => models.reduce((total, model) => total + (model.stats?.[name] || 0), 0);

function Gauge({ models, machine }) {
  const budget = machine.budget_bytes || 1;
  const parts = models.map((model) => [model.model, model.footprint_bytes || model.priced_bytes])
    .filter(([, held]) => held);
  let from = 0;
  return html`<section class="card wide"><h2>Memory</h2><svg class="gauge" viewBox="0 0 1000 28"
      preserveAspectRatio="none" role="img" aria-label="Memory of the loaded models">
    <rect class="free" width="1000" height="28" />${parts.map(([, held], index) => {
      const at = from;
      from += (1000 * held) / budget;
      return html`<rect class=${`part${index % 4}`} x=${at} width=${(1000 * held) / budget} height="28" />`;
    })}</svg><p class="dim">${parts.map(([name, held]) => `${name} ${bytes(held)}`).join(" · ") || "No model loaded"}
    ${" · "}budget ${bytes(machine.budget_bytes)} · free on this machine ${bytes(machine.available_bytes)}
    ${machine.pressure && ` · pressure ${machine.pressure}`}</p></section>`;
}

function Tile({ name, value, values }) {
  const top = Math.max(1, ...values);
  const points = values.map((one, index) => `${(index * 200) / 59},${38 - (36 * one) / top}`).join(" ");
  return html`<section class="card tile"><span class="dim">${name}</span><b>${value}</b>
    <svg viewBox="0 0 200 40" preserveAspectRatio="none" aria-hidden="true"><polyline points=${points} /></svg></section>`;
}

function Requests({ status }) {
  const [found, setFound] = useState([]);
  const ask = () => call("requests").then((reply) => setFound(reply.requests)).catch(() => {});
  useEffect(() => { ask(); }, [status]);
  const cancel = (id) => call("cancel", { request_id: id }).then(ask);
  return html`<section class="card wide"><h2>Requests</h2>${found.length ? html`<table><tbody>
    ${found.map((one) => html`<tr><td>${one.model}</td><td>${one.state?.phase}</td>
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
  const { models } = status;
  const hits = sum(models, "prefix_cache_hits");
  const rate = hits / Math.max(1, hits + sum(models, "prefix_cache_misses"));
  const [past, setPast] = useState([]);
  const now = { speed: sum(models, "decode_tokens_per_s"), running: sum(models, "running"),
    waiting: sum(models, "waiting"), rate };
  useEffect(() => setPast((old) => [...old, now].slice(-60)), [status]);
  const of = (name) => past.map((one) => one[name]);
  return html`<h1>Monitor</h1><div class="cards">
    <${Tile} name="Tokens per second" value=${now.speed.toFixed(1)} values=${of("speed")} />
    <${Tile} name="Running" value=${now.running} values=${of("running")} />
    <${Tile} name="Waiting" value=${now.waiting} values=${of("waiting")} />
    <${Tile} name="Cache hits" value=${percent(rate)} values=${of("rate")} />
    ${status.machine && html`<${Gauge} models=${models} machine=${status.machine} />`}
    <${Requests} status=${status} /><${Logs} /></div>`;
}
