// What users of the Vercel AI SDK do.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";
import { assert, check, done, env, fake, fault } from "./probe.mjs";

const provider = createOpenAICompatible({
  name: "inferd", baseURL: env.BASE_URL, apiKey: env.API_KEY, includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider(env.MODEL);
const prompt = "Say hello to the river.";
const schema = z.object({ city: z.enum(["Paris", "Rome"]) });
const tools = { weather: ai.tool({ description: "weather", inputSchema: schema }) };

await check("text", async () => {
  const { text, usage } = await ai.generateText({ model, prompt, maxOutputTokens: 16 });
  assert.ok(text.length);
  assert.ok(usage.outputTokens > 0);
});

await check("streamed text", async () => {
  const result = ai.streamText({ model, prompt, maxOutputTokens: 16 });
  let text = "";
  for await (const part of result.textStream) text += part;
  assert.ok(text.length);
  assert.ok((await result.usage).outputTokens > 0);
  assert.ok(["stop", "length"].includes(await result.finishReason));
});

await check("tool", async () => {
  const { toolCalls } = await ai.generateText({ model, prompt, tools, toolChoice: "required", maxOutputTokens: 64 });
  assert.ok(["Paris", "Rome"].includes(toolCalls[0].input.city));
});

await check("streamed tool", async () => {
  const result = ai.streamText({ model, prompt, tools, toolChoice: "required", maxOutputTokens: 64 });
  const calls = [];
  for await (const part of result.fullStream) if (part.type === "tool-call") calls.push(part);
  assert.equal(calls[0].toolName, "weather");
});

await check("object", async () => {
  const { output } = await ai.generateText({ model, prompt, output: ai.Output.object({ schema }), maxOutputTokens: 64 });
  assert.ok(["Paris", "Rome"].includes(output.city));
});

await check("embeddings", async () => {
  const embedder = (provider.embeddingModel ?? provider.textEmbeddingModel)(env.EMBEDDING_MODEL);
  const { embeddings } = await ai.embedMany({ model: embedder, values: ["one", "two", "three"] });
  assert.equal(embeddings.length, 3);
});

await check("streamed object", async () => {
  const result = ai.streamText({ model, prompt, output: ai.Output.object({ schema }), maxOutputTokens: 64 });
  let last;
  for await (const part of result.partialOutputStream) last = part;
  assert.ok(["Paris", "Rome"].includes(last.city));
});

await check("tool answered", async () => {
  const told = { weather: ai.tool({ description: "weather", inputSchema: schema, execute: ({ city }) => `rain in ${city}` }) };
  const { steps } = await ai.generateText({
    model, prompt, tools: told, toolChoice: "required", maxOutputTokens: 64, stopWhen: ai.stepCountIs(2), temperature: 0,
    stopSequences: ["\n\n"], // a small model chats on after its call, and a call cut by length is not answered
  });
  assert.equal(steps.length, 2);
  assert.match(steps[0].toolResults[0].output, /^rain in (Paris|Rome)$/);
});

await check("an answer tells its request", async () => {
  const { response } = await ai.generateText({ model, prompt, maxOutputTokens: 4 });
  assert.match(response.headers["x-request-id"], /^req_/);
  assert.match(response.id, /^chatcmpl-/);
});

await check("a stream that its user leaves", async () => {
  const leaving = new AbortController();
  const result = ai.streamText({ model, prompt, maxOutputTokens: 500, abortSignal: leaving.signal, onError() {} });
  const kinds = [];
  for await (const part of result.fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") leaving.abort();
  }
  assert.equal(kinds.at(-1), "abort");
});

if (fake) {
  await check("a stream that breaks has an error part", async () => {
    await fault("cut", { after: 4 });
    const result = ai.streamText({ model, prompt, maxOutputTokens: 50, maxRetries: 0, onError() {} });
    const kinds = new Set();
    for await (const part of result.fullStream) kinds.add(part.type);
    assert.ok(kinds.has("error"));
  });
}

await check("error", async () => {
  await assert.rejects(() => ai.generateText({ model: provider("none"), prompt, maxRetries: 0 }), (error) => {
    assert.equal(error.statusCode, 404);
    return true;
  });
});

done();
