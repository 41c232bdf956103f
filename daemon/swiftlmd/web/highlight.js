// Colours code of any language by what most share: comments, text, numbers, words, calls.

const WORDS = `and as async await break case catch class const continue def default del delete do elif
else enum except export extends false finally fn for from func function global if impl import in
interface is lambda let match mod mut namespace new nil none None not null of or package pass
private protected pub public raise return self static struct super switch template this throw trait
true True False try type typedef typeof union unless until use using var void while with yield
SELECT FROM WHERE JOIN ON GROUP BY ORDER INSERT INTO UPDATE SET VALUES AND OR NOT`.split(/\s+/);

// In this order: what begins as a comment is no text.
const KINDS = ["comment", "string", "number", "word", "call"];
const TOKEN = new RegExp([
  /(\/\*[\s\S]*?\*\/|(?<![:\w])\/\/.*|(?<=^|\s)#[ !].*)/,
  /("""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)/,
  /(\b0x[\da-fA-F]+\b|\b\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?\b)/,
  new RegExp(`\\b(${WORDS.join("|")})\\b`),
  /([A-Za-z_]\w*)(?=\()/,
].map((part) => part.source).join("|"), "gm");
const LONGEST = 50_000;

// Replaces the text of `code` by spans; never reads it as HTML.
export function highlight(code) {
  const text = code.textContent;
  if (text.length > LONGEST) return;
  const parts = document.createDocumentFragment();
  let at = 0;
  for (const found of text.matchAll(TOKEN)) {
    const span = document.createElement("span");
    span.className = KINDS[found.slice(1).findIndex((group) => group !== undefined)];
    span.textContent = found[0];
    parts.append(text.slice(at, found.index), span);
    at = found.index + found[0].length;
  }
  parts.append(text.slice(at));
  code.replaceChildren(parts);
}
