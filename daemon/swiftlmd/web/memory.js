// The memory ledger as a stacked gauge: what each kind of bytes holds, within the budget.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { bytes } from "./format.js";
import { t } from "./texts.js";

const COLOURS = 7;

// Kinds over all models; what was measured counts before what was priced.
export function partsOf(ledger) {
  const kinds = new Map();
  for (const model of ledger.models || []) {
    for (const { kind, priced_bytes: priced, measured_bytes: measured } of model.terms || []) {
      kinds.set(kind, (kinds.get(kind) || 0) + (measured ?? priced));
    }
  }
  kinds.set("daemon", ledger.daemon_bytes || 0);
  return [...kinds].filter(([, held]) => held > 0);
}

function Stack({ parts, budget }) {
  const whole = Math.max(budget, parts.reduce((total, [, held]) => total + held, 0)) || 1;
  let at = 0;
  return html`<svg class="gauge" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img"
      aria-label=${`${t("memory")}: ${parts.map(([kind, held]) => `${kind} ${bytes(held)}`).join(", ")}`}>
    <rect class="free" width="1000" height="28" />${parts.map(([, held], index) => {
      const x = at;
      at += (1000 * held) / whole;
      return html`<rect class=${`part${index % COLOURS}`} x=${x} width=${(1000 * held) / whole} height="28" />`;
    })}</svg>`;
}

export function Memory({ status }) {
  const [ledger, setLedger] = useState(null);
  useEffect(() => {
    call("memory").then((reply) => setLedger(JSON.parse(reply.ledger))).catch(() => setLedger(null));
  }, [status]);
  if (!ledger) return null;
  const parts = partsOf(ledger);
  const { thermal } = status.machine || {};
  const sums = [[t("priced"), ledger.priced_bytes], [t("measured"), ledger.measured_bytes],
    [t("budget"), ledger.budget_bytes], [t("freeHere"), ledger.available_bytes],
    [t("swap"), ledger.swap_used_bytes]];
  return html`<section class="card wide"><div class="row head"><h2>${t("memory")}</h2><span class="row">
      <span class="badge ${ledger.pressure === "normal" ? "good" : "warn"}">${t("pressure")} ${ledger.pressure || t("unknown")}</span>
      ${thermal && html`<span class="badge ${thermal === "nominal" ? "good" : "warn"}">${t("thermal")} ${thermal}</span>`}</span></div>
    <${Stack} parts=${parts} budget=${ledger.budget_bytes} />
    <ul class="legend">${parts.map(([kind, held], index) => html`<li><i class=${`part${index % COLOURS}`}></i>
      ${kind} <b>${bytes(held)}</b></li>`)}</ul>
    <p class="dim">${sums.filter(([, held]) => held > 0).map(([name, held]) => `${name} ${bytes(held)}`).join(" · ")}</p>
  </section>`;
}
