// What users of openai-node do, and what its parser relies on.
import OpenAI, { toFile } from "openai";
import { assert, check, done, env, fake, fault } from "./probe.mjs";

const client = new OpenAI({ baseURL: env.BASE_URL, apiKey: env.API_KEY, maxRetries: 0 });
const model = env.MODEL;
const messages = [{ role: "user", content: "Say hello to the river." }];
const city = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters: city, strict: true } }];

async function refused(call, status, param) {
  await assert.rejects(call, (error) => {
    assert.equal(error.status, status);
    if (param !== undefined) assert.equal(error.param, param);
    assert.ok(error.requestID ?? error.request_id);
    return true;
  });
}

await check("chat", async () => {
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 8 });
  assert.equal(answer.object, "chat.completion");
  assert.ok(answer.choices[0].message.content.length);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

await check("chat stream with usage", async () => {
  const stream = await client.chat.completions.create({
    model, messages, max_tokens: 8, stream: true, stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(chunks.filter((one) => one.choices[0]?.finish_reason).length, 1);
  assert.equal(chunks.at(-1).choices.length, 0);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
});

await check("stream ends at once after its end", async () => {
  const started = Date.now();
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 2, stream: true });
  for await (const _ of stream);
  assert.ok(Date.now() - started < 5000);
});

await check("stream helper", async () => {
  const stream = client.chat.completions.stream({ model, messages, max_tokens: 8 });
  const final = await stream.finalChatCompletion();
  assert.ok(final.choices[0].message.content.length);
});

await check("two choices in a stream helper", async () => {
  const stream = client.chat.completions.stream({ model, messages, max_tokens: 4, n: 2 });
  const final = await stream.finalChatCompletion();
  assert.deepEqual(final.choices.map((one) => one.index), [0, 1]);
});

await check("abort of a stream", async () => {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 200, stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
});

await check("tool call", async () => {
  const answer = await client.chat.completions.create({ model, messages, tools, tool_choice: "required", max_tokens: 64 });
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(call.function.name, "weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
});

await check("streamed tool call", async () => {
  // The stop is for a model that chats on after its call: the SDK takes an answer cut by length for an error.
  const stream = client.chat.completions.stream({
    model, messages, tools, max_tokens: 160, temperature: 0, stop: ["\n\n"], tool_choice: { type: "function", function: { name: "weather" } },
  });
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "weather");
  assert.ok(JSON.parse(call.function.arguments).city);
});

await check("answer to a tool call", async () => {
  const call = { id: "call_1", type: "function", function: { name: "weather", arguments: '{"city":"Rome"}' } };
  const answer = await client.chat.completions.create({
    model, tools, max_tokens: 8,
    messages: [...messages, { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", tool_call_id: "call_1", content: "sunny" }],
  });
  assert.ok(answer.choices.length);
});

await check("json schema", async () => {
  const answer = await client.chat.completions.create({
    model, messages, max_tokens: 64,
    response_format: { type: "json_schema", json_schema: { name: "city", schema: city, strict: true } },
  });
  assert.ok(["Paris", "Rome"].includes(JSON.parse(answer.choices[0].message.content).city));
});

await check("logprobs", async () => {
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 4, logprobs: true, top_logprobs: 2 });
  const { content } = answer.choices[0].logprobs;
  assert.ok(content.length);
  assert.equal(content[0].top_logprobs.length, 2);
});

await check("developer message and text parts", async () => {
  const answer = await client.chat.completions.create({
    model, max_tokens: 4,
    messages: [{ role: "developer", content: "Be brief." },
      { role: "user", content: [{ type: "text", text: "Hello" }, { type: "text", text: "there" }] }],
  });
  assert.ok(answer.choices.length);
});

await check("completion with echo", async () => {
  const answer = await client.completions.create({ model, prompt: "Once upon", max_tokens: 4, echo: true });
  assert.ok(answer.choices[0].text.startsWith("Once upon"));
});

await check("completion stream of two prompts", async () => {
  const stream = await client.completions.create({ model, prompt: ["One", "Two"], max_tokens: 3, stream: true });
  const seen = new Set();
  for await (const chunk of stream) for (const one of chunk.choices) seen.add(one.index);
  assert.deepEqual([...seen].sort(), [0, 1]);
});

await check("embeddings in base64 and floats", async () => {
  const input = ["one", "two"];
  const packed = await client.embeddings.create({ model: env.EMBEDDING_MODEL, input });
  const plain = await client.embeddings.create({ model: env.EMBEDDING_MODEL, input, encoding_format: "float" });
  assert.equal(packed.data.length, 2);
  packed.data[1].embedding.forEach((value, at) => assert.ok(Math.abs(value - plain.data[1].embedding[at]) < 1e-6));
});

await check("models", async () => {
  const names = [];
  for await (const one of client.models.list()) names.push(one.id);
  assert.ok(names.includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
});

await check("response", async () => {
  const answer = await client.responses.create({ model, input: "Say hello", max_output_tokens: 16 });
  assert.ok(answer.output_text.length);
  assert.equal(answer.store, false);
});

await check("response stream helper", async () => {
  const stream = client.responses.stream({ model, input: "Say hello" });
  const kinds = new Set();
  for await (const event of stream) kinds.add(event.type);
  const final = await stream.finalResponse();
  assert.ok(kinds.has("response.output_text.delta"));
  assert.ok(final.output_text.length);
});

await check("response with a function", async () => {
  const [{ function: tool }] = tools;
  const answer = await client.responses.create({
    model, input: "Weather?", tools: [{ type: "function", ...tool }], tool_choice: "required", max_output_tokens: 64,
  });
  assert.equal(answer.output[0].type, "function_call");
  assert.ok(JSON.parse(answer.output[0].arguments).city);
});

await check("wrong key", async () => {
  const other = new OpenAI({ baseURL: env.BASE_URL, apiKey: "sk-wrong", maxRetries: 0 });
  await refused(() => other.models.list(), 401);
});

await check("unknown model", () => refused(() => client.chat.completions.create({ model: "none", messages }), 404, "model"));
await check("unknown url", () => refused(() => client.get("/nothing"), 404));
await check("unknown parameter", () => refused(() => client.chat.completions.create({ model, messages, rid: "x" }), 400, "rid"));
await check("value out of range", () => refused(() => client.chat.completions.create({ model, messages, temperature: 3 }), 400, "temperature"));
await check("stored completions are refused", () => refused(() => client.chat.completions.create({ model, messages, store: true }), 400, "store"));
await check("schema that cannot be enforced", () => refused(() => client.chat.completions.create({
  model, messages, response_format: { type: "json_schema", json_schema: { name: "x", schema: { not: {} } } },
}), 400, "response_format"));

if (fake) {
  await check("a stream that breaks is an error", async () => {
    await fault("cut", { after: 4 });
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 50, stream: true });
    const read = async () => { for await (const _ of stream); };
    await assert.rejects(read, (error) => error instanceof OpenAI.APIError);
  });
  await check("a worker that refuses at first is a status", async () => {
    await fault("error", { status: 400, message: "no" });
    await assert.rejects(() => client.chat.completions.create({ model, messages, stream: true }), OpenAI.APIError);
  });
}

await check("batch", async () => {
  const line = (id) => JSON.stringify({ custom_id: id, method: "POST", url: "/v1/chat/completions", body: { model, messages, max_tokens: 4 } });
  const file = await toFile(Buffer.from(`${line("a")}\n${line("b")}\n`), "day.jsonl");
  const input = await client.files.create({ file, purpose: "batch" });
  let batch = await client.batches.create({ input_file_id: input.id, endpoint: "/v1/chat/completions", completion_window: "24h" });
  for (let tries = 0; tries < 300 && !batch.output_file_id; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    batch = await client.batches.retrieve(batch.id);
  }
  assert.equal(batch.request_counts.completed, 2, JSON.stringify(batch));
  const lines = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map(JSON.parse);
  assert.deepEqual(lines.map((one) => one.custom_id).sort(), ["a", "b"]);
  assert.ok(lines.every((one) => one.response.status_code === 200 && one.response.body.choices.length));
});

await check("raw response has headers", async () => {
  const { response } = await client.chat.completions.create({ model, messages, max_tokens: 2 }).withResponse();
  assert.ok(response.headers.get("x-request-id"));
  assert.ok(response.headers.get("openai-processing-ms"));
});

const line = JSON.stringify({
  custom_id: "1", method: "POST", url: "/v1/chat/completions", body: { model, messages },
});
const jsonl = `${line}\n`.repeat(3);

await check("file", async () => {
  const file = await toFile(Buffer.from(jsonl), "day.jsonl");
  const expires_after = { anchor: "created_at", seconds: 3600 };
  const made = await client.files.create({ file, purpose: "batch", expires_after });
  assert.deepEqual([made.bytes, made.filename], [jsonl.length, "day.jsonl"]);
  assert.equal(made.expires_at, made.created_at + 3600);
  assert.equal((await client.files.waitForProcessing(made.id)).status, "processed");
  const listed = [];
  for await (const one of client.files.list({ limit: 1 })) listed.push(one.id);
  assert.ok(listed.includes(made.id));
  assert.equal(await (await client.files.content(made.id)).text(), jsonl);
  assert.ok((await client.files.delete(made.id)).deleted);
  await refused(() => client.files.retrieve(made.id), 404);
});

await check("file in parts", async () => {
  const upload = await client.uploads.create({
    bytes: 2 * jsonl.length, filename: "two.jsonl", mime_type: "application/jsonl", purpose: "batch",
  });
  const parts = [];
  for (const name of ["a", "b"]) {
    const data = await toFile(Buffer.from(jsonl), name);
    parts.push((await client.uploads.parts.create(upload.id, { data })).id);
  }
  const complete = await client.uploads.complete(upload.id, { part_ids: parts });
  assert.equal(complete.status, "completed");
  assert.equal(await (await client.files.content(complete.file.id)).text(), jsonl + jsonl);
  await client.files.delete(complete.file.id);
});

await check("file that is no batch", async () => {
  const file = await toFile(Buffer.from("PK"), "a.zip");
  await refused(() => client.files.create({ file, purpose: "batch" }), 400, "file");
});

await check("many at once", async () => {
  const answers = await Promise.all(Array.from({ length: 12 }, () => client.chat.completions.create({ model, messages, max_tokens: 4 })));
  assert.equal(new Set(answers.map((one) => one.id)).size, 12);
});

done();
