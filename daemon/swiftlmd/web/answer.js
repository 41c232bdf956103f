// An answer as it grows: the events of the daemon, folded into one message.
import { keptAnswer } from "./api.js";
import { withFiles } from "./files.js";
import { waitWords } from "./format.js";
import { withPictures } from "./pictures.js";
import { t } from "./texts.js";

const TURN_MS = 12; // a burst of events leaves the page its share of time

function merge(message, delta) {
  let { calls } = message;
  for (const { index = 0, function: part = {} } of delta.tool_calls || []) {
    const call = calls?.[index] || { name: "", arguments: "" };
    calls = Object.assign([...(calls || [])], { [index]: { name: call.name + (part.name || ""),
      arguments: call.arguments + (part.arguments || "") } });
  }
  return { ...message, calls, text: message.text + (delta.content || ""),
    reasoning: message.reasoning + (delta.reasoning_content || "") };
}

const figures = ({ usage, timings }) => ({ tokens: usage.completion_tokens,
  used: usage.prompt_tokens + usage.completion_tokens,
  cached: usage.prompt_tokens_details?.cached_tokens, speed: timings?.predicted_per_second });

// What the model is shown. Answers of which nothing came are left out: they teach it to be silent.
export const asMessages = (talk, shown) => [
  ...(talk.system ? [{ role: "system", content: talk.system }] : []),
  ...shown.filter((one) => one.role === "user" || one.text)
    .map(({ role, text, images, files }) => ({ role,
      content: withPictures(withFiles(text, files), images) })),
];

// While it is written; the daemon's own figures come with the last event.
function pace({ begun = performance.now(), pieces = 0 }) {
  const passed = (performance.now() - begun) / 1000;
  return { begun, pieces: pieces + 1, speedNow: passed > 0.5 ? pieces / passed : 0 };
}

const breath = () => new Promise((resume) => { setTimeout(resume); });

// Streams the answer that the daemon keeps under `key` into `message`, telling `onChange` each
// state of it, and returns the last. `body` null takes it up from its start.
export async function answer(key, body, message, signal, onChange) {
  const from = performance.now();
  let turn = from;
  try {
    for await (const event of keptAnswer(key, body, signal)) {
      if (event.waits) {
        onChange({ ...message, waits: waitWords(event.waits) });
        continue;
      }
      const choice = event.choices?.[0];
      const delta = choice?.delta || {};
      if (!message.ttft && (delta.content || delta.reasoning_content || delta.tool_calls)) {
        message = { ...message, ttft: performance.now() - from };
      }
      if (message.text === "" && delta.content && message.reasoning) {
        message = { ...message, thought: performance.now() - from };
      }
      message = merge(message, delta);
      if (delta.content || delta.reasoning_content) message = { ...message, ...pace(message) };
      if (choice?.finish_reason) message = { ...message, reason: choice.finish_reason };
      if (event.usage) message = { ...message, ...figures(event) };
      onChange(message);
      if (performance.now() - turn > TURN_MS) {
        await breath();
        turn = performance.now();
      }
    }
  } catch (error) {
    const stopped = error.name === "AbortError";
    const lost = error.status === 404 || error.status === 410;
    message = { ...message, ...(stopped ? { reason: "stopped" } : { reason: "broken",
      error: lost ? t("daemonRestarted") : error.message,
      code: error.code }) };
  }
  const { begun, pieces, speedNow, ...last } = message; // of interest while it was written
  return last;
}
