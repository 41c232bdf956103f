// Access from the local network: off until it is wanted, never without a key; phones pair by a code.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { KeyList, addKey, hasKeys, useKeys } from "./keys.js";
import { qrCode } from "./qr.js";
import { t } from "./texts.js";

const LOOPBACK = "127.0.0.1";
const EVERYWHERE = "0.0.0.0";
const MARGIN = 4;

const isLoopback = (host) => /^(127\.|localhost$|::1$|\[::1\])/.test(host || LOOPBACK);

function QrCode({ text }) {
  const grid = qrCode(text);
  const size = grid.length + 2 * MARGIN;
  const path = grid.map((row, y) => row.map((dark, x) => (dark ? `M${x + MARGIN} ${y + MARGIN}h1v1h-1z` : "")).join("")).join("");
  return html`<svg class="qr" viewBox=${`0 0 ${size} ${size}`} shape-rendering="crispEdges" role="img"
    aria-label=${t("qrCode")}><path d=${path} /></svg>`;
}

function Offer() {
  const [offer, setOffer] = useState(null);
  const [left, setLeft] = useState(0);
  const [error, setError] = useState("");
  useEffect(() => {
    if (left <= 0) { setOffer(null); return undefined; }
    const timer = setTimeout(() => setLeft(left - 1), 1000);
    return () => clearTimeout(timer);
  }, [left]);
  const make = async () => {
    try {
      const reply = await call("pair_offer");
      setLeft(Math.round(reply.expires_s));
      setOffer(reply);
      setError("");
    } catch (failure) { setError(failure.message); }
  };
  const address = offer && `${offer.url}/#pair=${offer.token}`;
  return html`<h2>${t("pairPhone")}</h2>${error && html`<p class="error notice" role="alert">${error}</p>`}
    ${offer && offer.fingerprint && html`<${Trust} offer=${offer} />`}
    ${offer ? html`<p>${t("scanThis")}</p>
      <${QrCode} text=${address} /><div class="secret">${address}</div>
      <p class="dim" role="timer">${t("goodFor", { time: `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}` })}</p>`
    : html`<p class="dim">${t("showsCode")}</p>
      <button class="main" onClick=${make}>${t("showCode")}</button>`}`;
}

// A phone believes the certificate once it has the authority, which somebody must compare by eye.
function Trust({ offer }) {
  return html`<details class="trust"><summary>${t("trustTitle")}</summary>
    <ol><li>${t("trustOpen")} <span class="secret">${offer.url}/authority.crt</span></li>
      <li>${t("trustInstall")}</li>
      <li>${t("trustCompare")} <span class="secret">${offer.fingerprint}</span></li></ol></details>`;
}

function Restart({ status }) {
  const [asked, setAsked] = useState(false);
  const supervised = ["launchd", "systemd"].includes(status.supervisor);
  const restart = () => { setAsked(true); call("shutdown", { restart: true }).catch(() => setAsked(false)); };
  return html`<div class="notice" role="status"><p>${t("holdsAfterRestart")}</p>${supervised
    ? html`<button class="main" disabled=${asked} onClick=${restart}>${t(asked ? "restartingNow" : "restartNow")}</button>`
    : html`<p>${t("runRestart")} <code>swiftlmctl restart</code></p>`}</div>`;
}

export function Network({ status }) {
  const { keys, error, ask } = useKeys(status.link);
  const [host, setHost] = useState(null);
  const [wrong, setWrong] = useState("");
  const [tls, setTls] = useState("off");
  const setting = (key) => call("get_config", { key }).then((reply) => reply.entries[0]?.value);
  const read = () => Promise.all([setting("http.host"), setting("http.tls")])
    .then(([found, encrypted]) => { setHost(found || LOOPBACK); setTls(encrypted || "off"); setWrong(""); })
    .catch((failure) => setWrong(failure.message));
  useEffect(() => { if (status.link !== "away") read(); }, [status.link]);
  const open = host !== null && !isLoopback(host);
  const encrypted = Boolean(status.https_address);
  const served = encrypted || !isLoopback((status.http_address || "").replace(/:\d+$/, ""));
  const pending = open !== served || (open && (tls !== "off") !== encrypted);
  const encrypt = async () => {
    try {
      await call("set_config", { key: "http.tls", value: tls === "off" ? "auto" : "off" });
      setWrong("");
    } catch (failure) { setWrong(failure.message); }
    await read();
  };
  const toggle = async () => {
    try {
      if (!open && !hasKeys(keys)) await addKey("this browser", true);
      await call("set_config", { key: "http.host", value: open ? LOOPBACK : EVERYWHERE });
      setWrong("");
    } catch (failure) { setWrong(failure.message); }
    await ask();
    await read();
  };
  return html`<section class="card"><label class="switch"><input type="checkbox" role="switch" checked=${open}
      disabled=${!keys || host === null} onChange=${toggle} />${t("lanAccess")}</label>
    <p class="dim">${t("lanAccessText")}</p>
    ${open && html`<label class="switch"><input type="checkbox" role="switch" checked=${tls !== "off"} onChange=${encrypt} />${t("encrypted")}</label>
      <p class="dim">${t("encryptedText")}</p>`}
    ${(error || wrong) && html`<p class="error notice" role="alert">${error || wrong}</p>`}
    ${host !== null && pending && html`<${Restart} status=${status} />`}</section>
    ${open && served && html`<section class="card"><${Offer} /></section>`}
    ${keys && html`<section class="card"><h2>${t("pairedDevices")}</h2>
      <${KeyList} keys=${keys} onChanged=${ask} /></section>`}`;
}
