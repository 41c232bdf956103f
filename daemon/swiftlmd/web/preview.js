// HTML and SVG that a model wrote, shown in a frame that reaches neither the page nor any network.
import { t } from "./texts.js";

const KINDS = ["html", "svg", "xml"];

export const canPreview = (language, text) => KINDS.includes(language)
  && /<(?:!doctype html|html|body|svg|div|h1|p|style|script|button|canvas|form|table|ul)\b/i.test(text);

export function previewButton(frame, code) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = t("preview");
  let shown = null;
  button.onclick = () => {
    if (shown) shown.remove();
    shown = shown ? null : previewOf(code.textContent);
    if (shown) frame.append(shown);
    code.hidden = Boolean(shown);
    button.textContent = t(shown ? "showSource" : "preview");
  };
  return button;
}

function previewOf(text) {
  const frame = document.createElement("iframe");
  frame.className = "preview";
  frame.title = t("previewOf");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.src = new URL("preview.html", import.meta.url).href;
  frame.onload = () => { frame.onload = null; frame.contentWindow.postMessage(text, "*"); };
  return frame;
}
