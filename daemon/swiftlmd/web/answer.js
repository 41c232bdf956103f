// An answer as it grows: the events of the daemon, folded into one message.
import { keptAnswer } from "./api.js";
import { withPictures } from "./pictures.js";

function merge(message, delta) {
  const calls = [...(message.calls || [])];
  for (const { index = 0, function: part = {} } of delta.tool_calls || []) {
    const call = calls[index] || { name: "", arguments: "" };
    calls[index] = { name: call.name + (part.name || ""),
      arguments: call.arguments + (part.arguments || "") };
  }
  return { ...message, calls, text: message.text + (delta.content || ""),
    reasoning: message.reasoning + (delta.reasoning_content || "") };
}

const figures = ({ usage, timings }) => ({ tokens: usage.completion_tokens,
  cached: usage.prompt_tokens_details?.cached_tokens, speed: timings?.predicted_per_second });

export const asMessages = (talk, shown) => [
  ...(talk.system ? [{ role: "system", content: talk.system }] : []),
  ...shown.map(({ role, text, images }) => ({ role, content: withPictures(text, images) })),
];

// Streams the answer that the daemon keeps under `key` and tells `onChange` each state of it.
export async function answer(key, body, model, signal, onChange) {
  let message = { role: "assistant", text: "", reasoning: "", model };
  const from = performance.now();
  try {
    for await (const event of keptAnswer(key, body, signal)) {
      const choice = event.choices?.[0];
      const delta = choice?.delta || {};
      if (!message.ttft && (delta.content || delta.reasoning_content || delta.tool_calls)) {
        message = { ...message, ttft: performance.now() - from };
      }
      message = merge(message, delta);
      if (choice?.finish_reason) message = { ...message, reason: choice.finish_reason };
      if (event.usage) message = { ...message, ...figures(event) };
      onChange(message);
    }
  } catch (error) {
    const stopped = error.name === "AbortError";
    message = { ...message, ...(stopped ? { reason: "stopped" }
      : { error: error.message, code: error.code }) };
  }
  onChange(message);
}
