// API keys: a new one is shown once; the daemon keeps only its hash.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { call } from "./api.js";
import { copy } from "./copy.js";

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
  const [label, setLabel] = useState("Copy");
  const take = async () => setLabel(await copy(secret) ? "Copied" : "Select it by hand");
  return html`<div class="notice" role="status"><p>This key is shown once. Copy it now.</p>
    <div class="secret">${secret}</div><div class="row"><button class="main" onClick=${take}>${label}</button>
    <button onClick=${onDone}>Done</button></div></div>`;
}

export const hasKeys = (keys) => keys.names.length + keys.unnamed > 0;

export function KeyList({ keys, onChanged }) {
  const [error, setError] = useState("");
  const revoke = async (name) => {
    if (!confirm(`Revoke the key of ${name}? What uses it is shut out at once.`)) return;
    try { await call("remove_key", { name }); setError(""); } catch (failure) { setError(failure.message); }
    onChanged();
  };
  if (!hasKeys(keys)) return html`<p class="dim">None yet.</p>`;
  return html`${error && html`<p class="error notice" role="alert">${error}</p>`}<table class="named"><tbody>${keys.names.map((name) => html`
    <tr><th scope="row">${name}</th><td><button aria-label=${`Revoke ${name}`} onClick=${() => revoke(name)}>Revoke</button></td></tr>`)}</tbody></table>
    ${keys.unnamed > 0 && html`<p class="dim">and ${keys.unnamed} in the option http.api_keys</p>`}`;
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
  return html`<section class="card"><h2>API keys</h2>
    <p class="dim">Without any key every program on this machine may ask. With the first one each must send one.</p>
    ${(error || wrong) && html`<p class="error notice" role="alert">${error || wrong}</p>`}
    ${secret && html`<${Shown} secret=${secret} onDone=${() => setSecret("")} />`}
    ${keys && html`<${KeyList} keys=${keys} onChanged=${ask} />`}
    <form class="row" onSubmit=${add}><input class="grow" required maxlength="40" value=${name}
      aria-label="Name of the new key" placeholder="Name, for example laptop"
      onInput=${(event) => setName(event.target.value)} /><button class="main" disabled=${!keys}>Add a key</button></form></section>`;
}
