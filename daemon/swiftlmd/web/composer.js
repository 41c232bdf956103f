// Where a question is written: text, text files, and pictures for models that see.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { isTextFile, textOf } from "./files.js";
import { bytes } from "./format.js";
import { pictures } from "./pictures.js";

const LONG_PASTE = 4000; // characters; a longer paste becomes a file, which does not bury the question

function Attached({ images, files, onRemoveImage, onRemoveFile }) {
  if (!images.length && !files.length) return null;
  return html`<div class="row thumbs">${images.map((uri, index) => html`<span class="thumb">
      <img src=${uri} alt=${`Picture ${index + 1}`} /><button aria-label=${`Remove picture ${index + 1}`}
      onClick=${() => onRemoveImage(index)}>×</button></span>`)}
    ${files.map((file, index) => html`<span class="thumb filed">${file.name}
      <small class="dim">${bytes(file.text.length)}, about ${Math.ceil(file.text.length / 4)} tokens</small>
      <button aria-label=${`Remove ${file.name}`} onClick=${() => onRemoveFile(index)}>×</button></span>`)}</div>`;
}

function useGrowth(box, text) {
  useLayoutEffect(() => {
    box.current.style.height = "auto";
    box.current.style.height = `${box.current.scrollHeight + 2}px`;
  }, [text]);
}

// Files that are dropped anywhere on the page; without this the browser would leave it for them.
function useDrop(take) {
  useEffect(() => {
    const over = (event) => event.preventDefault();
    const drop = (event) => { event.preventDefault(); take(event.dataTransfer.files); };
    addEventListener("dragover", over);
    addEventListener("drop", drop);
    return () => { removeEventListener("dragover", over); removeEventListener("drop", drop); };
  });
}

export function Composer({ draft, onDraft, busy, away, vision, onSend, onStop }) {
  const { text, images, files } = draft;
  const [note, setNote] = useState("");
  const box = useRef();
  const latest = useRef(draft);
  latest.current = draft; // what reading a file takes may not undo what was typed meanwhile
  const change = (more) => onDraft({ ...latest.current, ...more });
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
  useGrowth(box, text);
  const take = async (given) => {
    const [seen, read] = [[], []];
    for (const file of given || []) (file.type.startsWith("image/") && !isTextFile(file) ? seen : read).push(file);
    if (!seen.length && !read.length) return;
    setNote("");
    try {
      if (seen.length && !vision) setNote("This model cannot see pictures; choose one that can.");
      else if (seen.length) change({ images: [...latest.current.images, ...await pictures(seen)] });
    } catch { setNote("This picture cannot be read."); }
    try {
      for (const file of read) change({ files: [...latest.current.files, await textOf(file)] });
    } catch (error) { setNote(error.message); }
  };
  useDrop(take);
  const paste = (event) => {
    const long = event.clipboardData.getData("text/plain");
    if (long.length > LONG_PASTE) {
      event.preventDefault();
      change({ files: [...files, { name: `pasted-${files.length + 1}.txt`, text: long }] });
    } else take(event.clipboardData.files);
  };
  const shown = vision ? images : [];
  const empty = !text.trim() && !shown.length && !files.length;
  const send = () => {
    if (empty || busy || away) return;
    onSend({ text: text.trim(), images: shown, files });
    onDraft({ text: "", images: [], files: [] });
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  const without = (list, gone) => list.filter((_, at) => at !== gone);
  return html`<div class="writer"><${Attached} images=${shown} files=${files}
      onRemoveImage=${(gone) => change({ images: without(images, gone) })}
      onRemoveFile=${(gone) => change({ files: without(files, gone) })} />
    ${note && html`<p class="dim" role="status">${note}</p>`}
    <div class="composer"><label class="button attach" title=${vision ? "Add a picture or a text file" : "Add a text file"}>
      <span aria-hidden="true">+</span><input type="file" multiple aria-label=${vision ? "Add a picture" : "Add a text file"}
        onChange=${(event) => { take(event.target.files); event.target.value = ""; }} /></label>
    <textarea ref=${box} rows="1" value=${text} aria-label="Message" dir="auto"
      placeholder=${vision ? "Ask anything, paste or drop a picture" : "Ask anything"}
      onKeyDown=${onKey} onPaste=${paste} onInput=${(event) => change({ text: event.target.value })} />${busy
    ? html`<button class="main stop" onClick=${onStop}>Stop</button>`
    : html`<button class="main" onClick=${send} disabled=${empty || away}>Send</button>`}</div></div>`;
}
