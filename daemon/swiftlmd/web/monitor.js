import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call, operation } from "./api.js";
import { Chart } from "./chart.js";
import { bytes, percent, seconds } from "./format.js";
import { Icon } from "./icons.js";
import { Memory } from "./memory.js";
import { past } from "./samples.js";
import { t } from "./texts.js";

const SPANS = { "5 min": 300, "1 h": 3600 };

function Requests({ status }) {
  const [found, setFound] = useState([]);
  const ask = () => call("requests").then((reply) => setFound(reply.requests)).catch(() => {});
  useEffect(() => { ask(); }, [status]);
  const cancel = (id) => call("cancel", { request_id: id }).then(ask);
  return html`<section class="card wide"><h2>${t("requests")}</h2>${found.length ? html`<div class="wide-table"><table><tbody>
    ${found.map((one) => html`<tr><td>${one.model}</td><td>${one.route}</td><td>${one.state?.phase}</td>
      <td>${t("tokens", { n: one.state?.completion_tokens ?? 0 })}</td><td>${seconds(one.state?.age_s || 0)}</td>
      <td><button onClick=${() => cancel(one.request_id)}>${t("cancel")}</button></td></tr>`)}</tbody></table></div>`
    : html`<p class="dim">${t("nothingRunning")}</p>`}</section>`;
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
  return html`<section class="card wide"><div class="row"><h2 class="grow">${t("log")}</h2><div class="searchbox"><${Icon} name="search" /><input type="search"
    aria-label=${t("filterLog")} placeholder=${t("filter")} onInput=${(event) => setFilter(event.target.value)} /></div>
    <button onClick=${ask}><${Icon} name="rotate-ccw" />${t("refresh")}</button></div><pre class="log" tabindex="0">${shown.join("\n") || t("nothingToShow")}</pre></section>`;
}

export function Monitor({ status }) {
  const [span, setSpan] = useState("5 min");
  const samples = past();
  const since = (samples.at(-1)?.at || 0) - SPANS[span];
  const shown = samples.filter((sample) => sample.at >= since);
  const chart = (name, of, show, top) => html`<${Chart} name=${t(name)} of=${of} show=${show} samples=${shown} span=${SPANS[span]} top=${top} />`;
  const count = (value) => String(Math.round(value * 10) / 10);
  return html`<div class="row head"><h1>${t("monitor")}</h1><div class="segments" role="group" aria-label=${t("timeShown")}>
      ${Object.keys(SPANS).map((name) => html`<button aria-pressed=${name === span} onClick=${() => setSpan(name)}>${name}</button>`)}</div></div>
    <div class="cards">${chart("chartSpeed", "speed", (value) => value.toFixed(1))}
    ${chart("chartRunning", "running", count)}${chart("chartWaiting", "waiting", count)}
    ${chart("chartHits", "hit_rate", percent, 1)}${chart("chartMemory", "used", bytes)}
    ${samples.at(-1)?.streams && html`${chart("chartSsd", "ssd", (value) => `${value.toFixed(1)} GB/s`)}
      ${chart("chartExperts", "ssd_hit_rate", percent, 1)}`}
    <${Memory} status=${status} /><${Requests} status=${status} /><${Logs} /></div>`;
}
