// Text files in a question: read in the browser and put before the words, each under its name.

import { t } from "./texts.js";

const MOST_BYTES = 1_000_000;
const NAMES = /\.(txt|md|csv|tsv|json|jsonl|ya?ml|toml|xml|html?|css|m?[jt]sx?|py|rb|rs|go|c|h|cc|cpp|hpp|m|mm|swift|java|kt|sh|zsh|sql|r|lua|php|tex|log|ini|cfg|conf|diff|patch)$/i;

export const isTextFile = (file) => file.type.startsWith("text/") || NAMES.test(file.name)
  || file.type === "application/json";

// Raises an error that says what is wrong with which file.
export async function textOf(file) {
  if (!isTextFile(file)) throw new Error(t("notText", { name: file.name }));
  if (file.size > MOST_BYTES) throw new Error(t("tooLargeFile", { name: file.name }));
  const text = await file.text();
  if (text.includes("\0")) throw new Error(t("notText", { name: file.name }));
  return { name: file.name, text };
}

const fence = (text) => "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));

export function withFiles(text, files) {
  const parts = (files || []).map((file) => {
    const marks = fence(file.text);
    return `File ${file.name}:\n${marks}\n${file.text}\n${marks}`;
  });
  return [...parts, text].filter(Boolean).join("\n\n");
}
