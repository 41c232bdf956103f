// A panel above the page: a drawer or a box on a wide window, a sheet from below on a phone. The
// browser's own dialog keeps the focus inside and closes it by Escape.
import { html, useLayoutEffect, useRef } from "./vendor/htm-preact.js";
import { IconButton } from "./icons.js";
import { t } from "./texts.js";

export function Sheet({ title, kind = "side", onClose, children }) {
  const box = useRef();
  useLayoutEffect(() => {
    const dialog = box.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const onClick = ({ target }) => { if (target === box.current) onClose(); };
  // A search field would take the key for itself and only empty.
  const onKeyDown = (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    onClose();
  };
  return html`<dialog ref=${box} class=${`sheet ${kind}`} aria-label=${title} onClose=${onClose} onClick=${onClick} onKeyDown=${onKeyDown}>
    <div class="inside">${kind !== "palette" && html`<div class="sheet-head"><h2>${title}</h2>
      <${IconButton} icon="x" name=${t("close")} onClick=${onClose} /></div>`}${children}</div></dialog>`;
}

// Asks before what cannot be taken back.
export function Confirm({ text, act, onDone, onCancel }) {
  return html`<${Sheet} title=${act} kind="box" onClose=${onCancel}><p>${text}</p><div class="row end">
    <button onClick=${onCancel}>${t("cancel")}</button>
    <button class="main danger" autofocus onClick=${() => { onCancel(); onDone(); }}>${act}</button></div></${Sheet}>`;
}

export const isSheetOpen = () => Boolean(document.querySelector("dialog[open]"));
