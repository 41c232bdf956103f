// One deed of the AI SDK: which version, provider and deed are arguments, what came of it is JSON.
// Read from stdin by node, in the folder that has the packages.
const [generation, provider, deed, url, model, embedder] = process.argv.slice(2);
const suffix = generation === "6" ? "" : generation;
const sdk = await import(`ai${suffix}`);
const { z } = await import("zod");

async function models() {
  const of = (name) => import(`ai-sdk-${name}${suffix}`);
  const settings = { baseURL: `${url}/v1`, apiKey: "none", name: "local", includeUsage: true };
  if (provider === "compatible") {
    const made = (await of("openai-compatible")).createOpenAICompatible(settings);
    return { chat: made(model), vectors: made.textEmbeddingModel?.(embedder) ?? made.embeddingModel(embedder) };
  }
  if (provider === "anthropic") return { chat: (await of("anthropic")).createAnthropic(settings)(model) };
  const made = (await of("openai")).createOpenAI(settings);
  const chat = provider === "responses" ? made(model) : made.chat(model);
  return { chat, vectors: made.embedding(embedder) };
}

const weather = sdk.tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `cold in ${city}`,
});
const { chat, vectors } = await models();
const loop = { model: chat, tools: { weather }, stopWhen: sdk.stepCountIs?.(4) ?? sdk.isStepCount(4) };

const deeds = {
  async loop() {
    const done = await sdk.generateText({ ...loop, prompt: "weather?" });
    const messages = [
      { role: "user", content: "weather?" },
      ...(done.responseMessages ?? done.response.messages),
      { role: "user", content: "thanks" },
    ];
    const next = await sdk.generateText({ ...loop, messages });
    return { text: done.text, steps: done.steps.length, next: next.text };
  },
  async stream() {
    const run = sdk.streamText({ ...loop, prompt: "weather?", onError: ({ error }) => { throw error; } });
    const parts = [];
    for await (const part of run.fullStream) parts.push(part);
    const thoughts = parts.filter((part) => part.type === "reasoning-delta");
    return {
      text: await run.text,
      thoughts: thoughts.map((part) => part.text ?? part.delta).join(""),
      errors: parts.filter((part) => part.type === "error").map((part) => String(part.error)),
      usage: await run.usage,
    };
  },
  async object() {
    const schema = z.object({ to: z.email(), people: z.number().int() });
    const output = sdk.Output.object({ schema });
    const done = await sdk.generateText({ model: chat, output, prompt: "x" });
    return done.output ?? done.experimental_output;
  },
  async vectors() {
    const done = await sdk.embedMany({ model: vectors, values: ["a", "b"] });
    return done.embeddings.map((vector) => vector.length);
  },
};
console.log(JSON.stringify(await deeds[deed]()));
