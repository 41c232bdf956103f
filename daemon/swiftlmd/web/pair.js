// The other end of pairing: this device came here by the code that a trusted screen showed.
import { html, useState } from "./vendor/htm-preact.js";
import { pairWith } from "./api.js";
import { t } from "./texts.js";

const DEVICES = [[/iPhone/, "iPhone"], [/iPad/, "iPad"], [/Android/, "Android phone"],
  [/Macintosh/, "Mac"], [/Windows/, "Windows PC"]];
const guessed = () => DEVICES.find(([pattern]) => pattern.test(navigator.userAgent))?.[1] || "Browser";

export const pairingToken = () => location.hash.match(/^#pair=([\w-]+)$/)?.[1];

export function Pair({ token }) {
  const [error, setError] = useState("");
  const pair = async (event) => {
    event.preventDefault();
    try {
      const { key } = await pairWith(token, event.target.elements.name.value.trim());
      localStorage.setItem("key", key);
      location.replace("#chat");
      location.reload();
    } catch (failure) { setError(failure.message); }
  };
  return html`<main><form class="lock card" onSubmit=${pair}><h1>${t("pairThis")}</h1>
    <p class="dim">${t("pairThisText")}</p>
    <label>${t("deviceName")}<input name="name" required maxlength="40" value=${guessed()} /></label>
    ${error && html`<p class="error notice" role="alert">${error}</p>`}
    <button class="main">${t("pair")}</button></form></main>`;
}
