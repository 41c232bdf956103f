// API keys: a new one is shown once; the daemon keeps only its hash.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { copy } from "./copy.js";
import { Icon } from "./icons.js";
import { Confirm } from "./sheet.js";
import { shareWith, sharing } from "./sync.js";
import { t } from "./texts.js";

const ownKey = () => localStorage.getItem("key");

// A key by this name. The first one closes the door for everybody without: this page keeps it.
export async function addKey(name, isFirst) {
  const { key } = await call("add_key", { name });
  if (isFirst && !ownKey()) localStorage.setItem("key", key);
  return key;
}

export function useKeys(link) {
  const [keys, setKeys] = useState(null);
  const [error, setError] = useState("");
  const ask = () => call("list_keys").then((reply) => { setKeys(reply); setError(""); })
    .catch((failure) => setError(failure.message));
  useEffect(() => { if (link !== "away") ask(); }, [link]);
  return { keys, error, ask };
}

function Shown({ secret, onDone }) {
  const [label, setLabel] = useState(t("copy"));
  const take = async () => setLabel(await copy(secret) ? t("copied") : t("selectByHand"));
  return html`<div class="notice" role="status"><p>${t("keyOnce")}</p>
    <div class="secret">${secret}</div><div class="row"><button class="main" onClick=${take}>${label}</button>
    <button onClick=${onDone}>${t("done")}</button></div></div>`;
}

export const hasKeys = (keys) => keys.names.length + keys.unnamed > 0;

// Whether a key uses the owner's chats: a phone of the owner does, one of a guest does not.
function useSharing(setError) {
  const [shared, setShared] = useState([]);
  useEffect(() => { sharing().then(setShared, () => {}); }, []);
  const toggle = async (name) => {
    const next = shared.includes(name) ? shared.filter((one) => one !== name) : [...shared, name];
    try { setShared(await shareWith(next)); } catch (failure) { setError(failure.message); }
  };
  return { shared, toggle };
}

export function KeyList({ keys, onChanged }) {
  const [error, setError] = useState("");
  const { shared, toggle } = useSharing(setError);
  const [asked, setAsked] = useState("");
  const revoke = async (name) => {
    try { await call("remove_key", { name }); setError(""); } catch (failure) { setError(failure.message); }
    onChanged();
  };
  if (!hasKeys(keys)) return html`<p class="dim">${t("noneYet")}</p>`;
  return html`${error && html`<p class="error notice" role="alert">${error}</p>`}<table class="named"><tbody>${keys.names.map((name) => html`
    <tr><th scope="row"><${Icon} name="key-round" />${name}</th>
      <td><label class="shares"><input type="checkbox" role="switch" class="switch" checked=${shared.includes(name)} aria-label=${t("sharesChatsNamed", { name })}
        onChange=${() => toggle(name)} />${t("sharesChats")}</label></td><td><button aria-label=${t("revokeNamed", { name })} onClick=${() => setAsked(name)}>${t("revoke")}</button></td></tr>`)}</tbody></table>
    ${keys.unnamed > 0 && html`<p class="dim">${t("unnamedKeys", { n: keys.unnamed })}</p>`}
    ${asked && html`<${Confirm} act=${t("revoke")} text=${t("revokeQuestion", { name: asked })} onDone=${() => revoke(asked)} onCancel=${() => setAsked("")} />`}`;
}

export function Keys({ status }) {
  const { keys, error, ask } = useKeys(status.link);
  const [name, setName] = useState("");
  const [secret, setSecret] = useState("");
  const [wrong, setWrong] = useState("");
  const add = async (event) => {
    event.preventDefault();
    try {
      setSecret(await addKey(name.trim(), !hasKeys(keys)));
      setName("");
      setWrong("");
    } catch (failure) { setWrong(failure.message); }
    ask();
  };
  return html`<section class="card"><h2>${t("apiKeys")}</h2>
    <p class="dim">${t("keysText")}</p>
    ${(error || wrong) && html`<p class="error notice" role="alert">${error || wrong}</p>`}
    ${secret && html`<${Shown} secret=${secret} onDone=${() => setSecret("")} />`}
    ${keys && html`<${KeyList} keys=${keys} onChanged=${ask} />`}
    <form class="row" onSubmit=${add}><input class="grow" required maxlength="40" value=${name}
      aria-label=${t("nameOfKey")} placeholder=${t("nameOfKeyExample")}
      onInput=${(event) => setName(event.target.value)} /><button class="main" disabled=${!keys}>${t("addKey")}</button></form></section>`;
}
