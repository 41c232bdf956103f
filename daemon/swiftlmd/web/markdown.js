// Model output is foreign text: it becomes Markdown, is cleaned, and only then meets the page.
import { marked } from "./vendor/marked.js";
import purify from "./vendor/purify.js";

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

// A click anywhere on an answer; the button is not part of the foreign text.
export function addCopyButtons(root) {
  for (const block of root.querySelectorAll("pre")) {
    if (block.parentElement.className === "code") continue;
    const frame = document.createElement("div");
    const button = document.createElement("button");
    frame.className = "code";
    button.textContent = "Copy";
    button.type = "button";
    button.onclick = async () => {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    block.replaceWith(frame);
    frame.append(block, button);
  }
}
