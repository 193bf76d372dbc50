// Runs checks by name and says `ok NAME` or `not ok NAME: why`.
import assert from "node:assert/strict";

export const env = process.env;
export { assert };

/** Arm a fault of the fake engine; the real one has none to order. */
export async function fault(kind, more) {
  const headers = { "content-type": "application/json" };
  const body = JSON.stringify({ kind, times: 1, ...more });
  const answer = await fetch(`${env.ENGINE_URL}/fake/fault`, { method: "POST", headers, body });
  assert.equal(answer.status, 200);
}

export const fake = env.ENGINE_KIND === "fake";

let failed = 0;

export async function check(name, body) {
  try {
    await body();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`not ok ${name}: ${error?.message ?? error}`);
  }
}

export function done() {
  process.exit(failed ? 1 : 0);
}
