import { t } from "./texts.js";

export function bytes(count) {
  if (!count) return "0";
  const unit = Math.min(4, Math.floor(Math.log(count) / Math.log(1000)));
  return `${(count / 1000 ** unit).toFixed(unit > 2 ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

// 12.3k rather than 12345, where room is scarce.
export const short = (count) => (count < 10_000 ? count.toLocaleString() : `${Math.round(count / 1000)}k`);

export const percent = (part) => `${Math.round(100 * (part || 0))} %`;

export function seconds(value) {
  if (value < 90) return `${Math.round(value)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

const began = new Map();

// By the pace since `key` was first shown; nothing while that is too short to tell.
export function left(key, part) {
  const now = performance.now();
  if (!(part >= began.get(key)?.part)) began.set(key, { part, now });
  const from = began.get(key);
  const done = part - from.part;
  return done > 0.05 && part < 1 ? ` · ${t("timeLeft", { time: seconds((now - from.now) * (1 - part) / done / 1000) })}` : "";
}

// What a stream's comment says of its progress, for people: "prefill 512/2048, 12 s left".
export function waitWords(comment) {
  const [what, rest] = comment.split(", ");
  const [, kind, done, total] = what.match(/^(pull|prefill) (\d+)\/(\d+)/) || [];
  const load = what.match(/^load (\S+) (\d+)%$/);
  const words = load ? t("waitsForLoad", { stage: load[1], part: `${load[2]} %` })
    : kind && t(kind === "pull" ? "waitsForPull" : "waitsForPrompt", { part: percent(done / (total || 1)) });
  return words ? words + (rest ? ` · ${rest}` : "") : "";
}

// Without its owner, whom a narrow list has no room for, unless two models differ only in that.
export const shortest = (name, models) => {
  const last = (one) => one.split("/").pop();
  return models.filter((one) => last(one.model) === last(name)).length > 1 ? name : last(name);
};
