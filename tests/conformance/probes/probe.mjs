// Runs checks by name and says `ok NAME` or `not ok NAME: why`.
import assert from "node:assert/strict";

export const env = process.env;
export { assert };

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
