// Where a question is written: text, and pictures for models that see.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { pictures } from "./pictures.js";

function Pictures({ uris, onRemove }) {
  if (!uris.length) return null;
  return html`<div class="row thumbs">${uris.map((uri, index) => html`<span class="thumb">
    <img src=${uri} alt=${`Picture ${index + 1}`} /><button aria-label=${`Remove picture ${index + 1}`}
      onClick=${() => onRemove(index)}>×</button></span>`)}</div>`;
}

export function Composer({ busy, away, vision, onSend, onStop }) {
  const [text, setText] = useState("");
  const [uris, setUris] = useState([]);
  const [note, setNote] = useState("");
  const box = useRef();
  useEffect(() => {
    const focus = (event) => {
      if (event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
      event.preventDefault();
      box.current.focus();
    };
    box.current.focus();
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const take = async (files) => {
    if (![...files].some((file) => file.type.startsWith("image/"))) return;
    if (!vision) { setNote("This model cannot see pictures; choose one that can."); return; }
    try {
      const found = await pictures(files);
      setUris((old) => [...old, ...found]);
      setNote("");
    } catch { setNote("This picture cannot be read."); }
  };
  const send = () => {
    if (!text.trim() || busy || away) return;
    onSend(text.trim(), vision ? uris : []);
    setText("");
    setUris([]);
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && busy) onStop();
  };
  const drop = (event) => { event.preventDefault(); take(event.dataTransfer.files); };
  return html`<div class="writer" onDrop=${drop} onDragOver=${(event) => event.preventDefault()}>
    <${Pictures} uris=${uris} onRemove=${(gone) => setUris(uris.filter((_, at) => at !== gone))} />
    ${note && html`<p class="dim" role="status">${note}</p>`}
    <div class="composer">${vision && html`<label class="button attach" title="Add a picture">
      <span aria-hidden="true">+</span><input type="file" accept="image/*" multiple aria-label="Add a picture"
        onChange=${(event) => { take(event.target.files); event.target.value = ""; }} /></label>`}
    <textarea ref=${box} rows="2" value=${text} aria-label="Message"
      placeholder=${vision ? "Ask anything, paste or drop a picture" : "Ask anything"}
      onKeyDown=${onKey} onPaste=${(event) => take(event.clipboardData.files)}
      onInput=${(event) => setText(event.target.value)} />${busy
    ? html`<button class="main stop" onClick=${onStop}>Stop</button>`
    : html`<button class="main" onClick=${send} disabled=${!text.trim() || away}>Send</button>`}</div></div>`;
}
