// npm's `ollama`, all its calls in a row; what came of them is JSON. Read from stdin by node.
import { Ollama } from "ollama";
const [url, model, embedder] = process.argv.slice(2);
const client = new Ollama({ host: url });
const user = { role: "user", content: "weather?" };
const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", description: "It.", parameters } }];

const pieces = [];
for await (const piece of await client.chat({ model, messages: [user], tools, think: true, stream: true }))
  pieces.push(piece);
const calls = pieces.flatMap((piece) => piece.message.tool_calls ?? []);
const asked = { role: "assistant", content: "", tool_calls: calls };
const result = { role: "tool", tool_name: "weather", content: "cold in Oslo" };
const answer = await client.chat({ model, messages: [user, asked, result], tools });
const failure = await client.chat({ model: "absent", messages: [user] }).catch((error) => error);
console.log(JSON.stringify({
  thoughts: pieces.map((piece) => piece.message.thinking ?? "").join(""),
  calls,
  answer: answer.message.content,
  generated: (await client.generate({ model, prompt: "why?" })).response,
  models: (await client.list()).models.map((listed) => listed.name),
  running: (await client.ps()).models.length,
  shown: (await client.show({ model })).capabilities,
  vectors: (await client.embed({ model: embedder, input: ["a", "b"] })).embeddings.length,
  failure: [failure.name, failure.status_code],
}));
