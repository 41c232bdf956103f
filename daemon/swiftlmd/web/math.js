// Where mathematics stands in Markdown: $a$, \(a\), $$a$$, \[a\]. As code until it is drawn.
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const escaped = (text) => text.replace(/[&<>]/g, (letter) => ESCAPES[letter]);

const block = {
  name: "mathBlock",
  level: "block",
  start: (text) => text.match(/(^|\n)(\$\$|\\\[)/)?.index,
  tokenizer(text) {
    const found = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/.exec(text);
    return found && { type: "mathBlock", raw: found[0], text: (found[1] ?? found[2]).trim() };
  },
  renderer: ({ text }) => `<p><code data-math="block">${escaped(text)}</code></p>\n`,
};

// As in pandoc: no blank inside the marks and no digit behind them, so that prices stay prices.
const INLINE = /^(?:\$\$([^$\n]+?)\$\$|\$(?![\s$])((?:\\.|[^$\\\n])*?)(?<![\s\\])\$(?![\d\w])|\\\(([^\n]+?)\\\))/;

const inline = {
  name: "mathInline",
  level: "inline",
  start: (text) => text.match(/\$|\\\(/)?.index,
  tokenizer(text) {
    const found = INLINE.exec(text);
    const tex = found?.[1] ?? found?.[2] ?? found?.[3];
    return tex ? { type: "mathInline", raw: found[0], text: tex } : undefined;
  },
  renderer: ({ text }) => `<code data-math="inline">${escaped(text)}</code>`,
};

export const mathInText = [block, inline];
