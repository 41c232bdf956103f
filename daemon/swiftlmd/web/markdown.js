// Model output is foreign text: it becomes Markdown, is cleaned, and only then meets the page.
import { marked } from "./vendor/marked.js";
import purify from "./vendor/purify.js";
import { copy } from "./copy.js";
import { colour, setMath } from "./lazily.js";
import { mathInText } from "./math.js";
import { canPreview, previewButton } from "./preview.js";
import { t } from "./texts.js";

const CLEAN = {
  USE_PROFILES: { html: true },
  FORBID_TAGS: ["style", "form", "button", "textarea", "select", "img", "video", "audio",
    "source", "picture"],
  // Ids and names could stand in for the page's own variables.
  FORBID_ATTR: ["style", "id", "name", "background"],
  RETURN_DOM_FRAGMENT: true,
};

purify.addHook("uponSanitizeAttribute", (node, data) => {
  // The only classes are the languages of code.
  if (data.attrName === "class") data.keepAttr = node.tagName === "CODE" && /^language-[\w+#.-]+$/.test(data.attrValue);
});

purify.addHook("uponSanitizeElement", (node, { tagName }) => {
  // The only inputs are the boxes of task lists.
  if (tagName === "input" && !(node.type === "checkbox" && node.disabled)) node.remove();
});

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

const SHOWN = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => text.replace(/[&<>"]/g, (letter) => SHOWN[letter]);
const ALLOWED = /<(\/?)(br|sub|sup|details|summary|kbd)\s*(\/?)>/gi;

// Tags that a model writes without backticks are what it wants to say: `Vec<String>`.
function literal(text) {
  let from = 0;
  let shown = "";
  for (const tag of text.matchAll(ALLOWED)) {
    shown += escaped(text.slice(from, tag.index)) + tag[0];
    from = tag.index + tag[0].length;
  }
  return shown + escaped(text.slice(from));
}

const where = (href) => { try { return new URL(href).host || t("elsewhere"); } catch { return t("elsewhere"); } };

marked.use({ gfm: true, breaks: true, extensions: mathInText, renderer: {
  html({ text, block }) {
    const shown = literal(text);
    return block && !/^<\/?(br|sub|sup|details|summary|kbd)/i.test(text.trim())
      ? `<p>${shown.trimEnd().replaceAll("\n", "<br>")}</p>` : shown;
  },
  image({ href, text }) { return escaped(t("notLoaded", { name: text || t("picture"), host: where(href) })); },
} });

// Colours, the language's name and buttons; none of them is part of the foreign text.
function dressCode(root, isWhole) {
  for (const block of root.querySelectorAll("pre")) {
    const frame = document.createElement("div");
    const head = document.createElement("div");
    const name = document.createElement("span");
    const code = block.querySelector("code");
    const language = code?.className.replace("language-", "") || "";
    frame.className = "code";
    head.className = "codehead";
    name.textContent = language;
    head.append(name);
    if (isWhole && canPreview(language, block.textContent)) head.append(previewButton(frame, block));
    head.append(copyButton(() => block.textContent));
    block.tabIndex = 0; // a long line is scrolled by keys
    if (code && language && isWhole) colour(code, language);
    block.replaceWith(frame);
    frame.append(head, block);
  }
}

function copyButton(textOf) {
  const button = document.createElement("button");
  button.textContent = t("copy");
  button.type = "button";
  button.onclick = async () => {
    button.textContent = await copy(textOf()) ? t("copied") : t("notAllowed");
    setTimeout(() => { button.textContent = t("copy"); }, 1500);
  };
  return button;
}

function dressTables(root) {
  for (const table of root.querySelectorAll("table")) { // a wide one is scrolled in its own box
    const box = document.createElement("div");
    box.className = "wide-table";
    box.tabIndex = 0;
    table.replaceWith(box);
    box.append(table);
  }
}

function dress(root, isWhole) {
  dressCode(root, isWhole);
  dressTables(root);
  for (const place of root.querySelectorAll("code[data-math]")) setMath(place);
  for (const part of root.querySelectorAll("p, li, h1, h2, h3, h4, h5, h6, td, th, blockquote")) part.dir = "auto";
}

const TARGET = /^[ \t>*+\-\d.)]*\[[^\]]+\]:/m; // `[1]: https://...`, also in a list or a quotation
const SOON = 4000; // longer code under way is coloured when it is complete

function rendered(html, isWhole) {
  const block = document.createElement("div");
  block.className = "block";
  block.append(purify.sanitize(html, CLEAN));
  dress(block, isWhole || html.length < SOON);
  return block;
}

// Shows growing text in `root`: a block that is complete is rendered once and never touched again,
// so that a long answer costs no more per token than a short one, and a selection stays.
export class Growing {
  constructor(root) {
    this.root = root;
    this.blocks = []; // {raw, html, node}
    this.text = "";
  }

  // `isWhole`: no more follows. Only targets of links, given at the end, change earlier blocks.
  show(given, isWhole) {
    const text = given.replace(/\r\n?/g, "\n"); // as the lexer counts
    const changed = !text.startsWith(this.text) || (isWhole && TARGET.test(text));
    if (changed) return this.#replace(0, text, isWhole);
    let at = this.blocks.length - 1;
    while (at > 0 && !this.blocks[at].raw.trim()) at -= 1; // what follows may belong to the one before
    at = Math.max(at, 0);
    const before = this.blocks.slice(0, at).reduce((sum, block) => sum + block.raw.length, 0);
    return this.#replace(at, text, isWhole, before);
  }

  #replace(from, text, isWhole, before = 0) {
    const tokens = marked.lexer(text.slice(before));
    const old = this.blocks.splice(from);
    tokens.forEach((token, index) => {
      const isLast = !isWhole && index === tokens.length - 1;
      const html = marked.parser([token]);
      const known = old[index];
      if (known?.html === html && known.isWhole === !isLast) {
        this.blocks.push({ ...known, raw: token.raw });
        return;
      }
      const node = rendered(html, !isLast);
      if (known) known.node.replaceWith(node); else this.root.append(node);
      this.blocks.push({ raw: token.raw, html, node, isWhole: !isLast });
    });
    for (const gone of old.slice(tokens.length)) gone.node.remove();
    this.text = text;
  }
}
