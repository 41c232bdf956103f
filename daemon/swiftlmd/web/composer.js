// Where a question is written: text, text files, and pictures for models that see.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { isTextFile, textOf } from "./files.js";
import { bytes } from "./format.js";
import { Icon, IconButton } from "./icons.js";
import { pictures } from "./pictures.js";
import { t } from "./texts.js";

const TOUCH = matchMedia("(pointer: coarse)").matches;
const LONG_PASTE = 4000; // characters; a longer paste becomes a file, which does not bury the question

function Attached({ images, files, onRemoveImage, onRemoveFile }) {
  if (!images.length && !files.length) return null;
  return html`<div class="row thumbs">${images.map((uri, index) => html`<span class="thumb">
      <img src=${uri} alt=${t("pictureNumber", { number: index + 1 })} /><${IconButton} icon="x" name=${t("removePicture", { number: index + 1 })}
      onClick=${() => onRemoveImage(index)} /></span>`)}
    ${files.map((file, index) => html`<span class="thumb filed"><${Icon} name="file-text" /><span>${file.name}</span><small class="dim">${t("fileSize", { size: bytes(file.text.length), n: Math.ceil(file.text.length / 4) })}</small>
      <${IconButton} icon="x" name=${t("removeFile", { name: file.name })} onClick=${() => onRemoveFile(index)} /></span>`)}</div>`;
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

export function Composer({ draft, onDraft, busy, away, vision, reasoning, thinking, onThinking, onSend, onStop }) {
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
    if (!TOUCH) box.current.focus(); // on a phone that brings the keyboard
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
      if (seen.length && !vision) setNote(t("cannotSee"));
      else if (seen.length) change({ images: [...latest.current.images, ...await pictures(seen)] });
    } catch { setNote(t("unreadablePicture")); }
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
  const prompt = vision ? "askWithPictures" : "askAnything";
  return html`<div class=${`writer ${busy ? "answering" : ""}`}><${Attached} images=${shown} files=${files}
      onRemoveImage=${(gone) => change({ images: without(images, gone) })}
      onRemoveFile=${(gone) => change({ files: without(files, gone) })} />
    ${note && html`<p class="dim" role="status">${note}</p>`}
    <textarea ref=${box} rows="1" value=${text} aria-label=${t("message")} dir="auto" enterkeyhint="send" placeholder=${t(prompt)}
      onKeyDown=${onKey} onPaste=${paste} onInput=${(event) => change({ text: event.target.value })} />
    <div class="tools"><label class="icon-button" title=${t(vision ? "addPicture" : "addFile")}><${Icon} name="plus" />
      <input type="file" multiple aria-label=${t(vision ? "addPicture" : "addFile")} onChange=${(event) => { take(event.target.files); event.target.value = ""; }} /></label>
      ${reasoning && html`<button class="toggle" aria-pressed=${thinking !== false} onClick=${() => onThinking(thinking === false ? undefined : false)}>
        <${Icon} name="brain" />${t("thinkFirst")}</button>`}
      <span class="grow"></span>${busy
    ? html`<button class="send stop" aria-label=${t("stop")} title=${t("stop")} onClick=${onStop}><${Icon} name="square" /></button>`
    : html`<button class="send" aria-label=${t("send")} title=${t("send")} onClick=${send} disabled=${empty || away}><${Icon} name="arrow-up" /></button>`}</div></div>`;
}
