// Model output is foreign text: it becomes Markdown, is cleaned, and only then meets the page.
import { marked } from "./vendor/marked.js";
import purify from "./vendor/purify.js";
import { copy } from "./copy.js";
import { highlight } from "./highlight.js";

const CLEAN = {
  USE_PROFILES: { html: true },
  FORBID_TAGS: ["style", "form", "input", "button", "textarea", "select", "img", "video", "audio",
    "source", "picture"],
  // Ids and names could stand in for the page's own variables.
  FORBID_ATTR: ["style", "id", "name", "class"],
};

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

export const clean = (text) => purify.sanitize(marked.parse(text, { gfm: true, breaks: true }),
  CLEAN);

// Colours and a copy button; the button is not part of the foreign text.
export function dressCode(root) {
  for (const block of root.querySelectorAll("pre")) {
    if (block.parentElement.className === "code") continue;
    const frame = document.createElement("div");
    const button = document.createElement("button");
    frame.className = "code";
    button.textContent = "Copy";
    button.type = "button";
    button.onclick = async () => {
      button.textContent = await copy(block.textContent) ? "Copied" : "Not allowed";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    block.tabIndex = 0; // a long line is scrolled by keys
    for (const code of block.querySelectorAll("code")) highlight(code);
    block.replaceWith(frame);
    frame.append(block, button);
  }
}
