"use strict";
// Renews what is marked as live, and streams the playground. Everything else works without it.

const LIVE_MS = 2000;

function renew(part) {
  let waiting = false;
  setInterval(async () => {
    // What has the keyboard's focus is not replaced under it.
    if (waiting || document.hidden || part.contains(document.activeElement)) return;
    waiting = true;
    try {
      const answer = await fetch(part.dataset.live, { redirect: "error" });
      if (!answer.ok) throw new Error(String(answer.status));
      part.innerHTML = await answer.text();
      part.classList.remove("stale");
    } catch {
      part.classList.add("stale");
    } finally {
      waiting = false;
    }
  }, LIVE_MS);
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.replace(/^data: /, "");
      if (data !== "[DONE]" && !frame.startsWith(":")) yield JSON.parse(data);
    }
  }
}

async function ask(form, side, stop) {
  const output = side.querySelector("output");
  const note = side.querySelector(".note");
  const began = performance.now();
  let first = null;
  output.textContent = "";
  note.textContent = "waiting…";
  const body = {
    model: side.querySelector("select").value,
    messages: [{ role: "user", content: form.elements.prompt.value }],
    max_tokens: Number(form.elements.max_tokens.value),
    temperature: Number(form.elements.temperature.value),
    stream: true,
    stream_options: { include_usage: true },
  };
  try {
    const answer = await fetch(form.dataset.chat, {
      method: "POST",
      signal: stop,
      redirect: "error",
      headers: {
        "content-type": "application/json",
        "x-csrf-token": form.elements.csrf_token.value,
        "x-inferd-team": form.elements.team.value,
      },
      body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    let usage = null;
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const delta = event.choices?.[0]?.delta ?? {};
      const text = (delta.reasoning_content ?? "") + (delta.content ?? "");
      if (text && first === null) first = performance.now() - began;
      output.append(text);
    }
    const took = performance.now() - began;
    const tokens = usage ? usage.completion_tokens : 0;
    const each = tokens > 1 ? (took - first) / (tokens - 1) : 0;
    note.textContent =
      `TTFT ${Math.round(first ?? took)} ms · ${tokens} tokens · ${each.toFixed(1)} ms per token` +
      ` · ${answer.headers.get("x-request-id")}`;
  } catch (error) {
    note.textContent = error.name === "AbortError" ? "stopped" : `failed: ${error.message}`;
  }
}

function play(form) {
  const sides = [...form.querySelectorAll(".side")];
  const stopButton = form.querySelector("[data-stop]");
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = (running = new AbortController());
    stopButton.disabled = false;
    await Promise.all(sides.map((side) => ask(form, side, mine.signal)));
    if (running === mine) stopButton.disabled = true;
  });
  stopButton.addEventListener("click", () => running?.abort());
}

for (const part of document.querySelectorAll("[data-live]")) renew(part);
for (const form of document.querySelectorAll("[data-chat]")) play(form);
