import assert from "node:assert/strict";
import test from "node:test";
import { register } from "node:module";

// The API's module imports components; here it is a plane of states, and counts what it is asked.
register("data:text/javascript," + encodeURIComponent(`
  export async function resolve(name, context, next) {
    if (/\\/api\\.js$/.test(name)) return { url: "data:text/javascript," + encodeURIComponent(
      "export const api = globalThis.fakeAPI; export const query = (q) => '?' + new URLSearchParams(q); export const segment = encodeURIComponent;"), shortCircuit: true };
    return next(name, context);
  }`));

const block = 8192;
let plane = new Uint8Array();
let asked = 0;
globalThis.fakeAPI = {
  raw: async (path) => {
    const q = new URLSearchParams(path.split("?")[1]);
    asked++;
    assert.ok(Number(q.get("blocks")) <= 128 && Number(q.get("from")) >= 0, path);
    const from = Number(q.get("from")) * block;
    return { arrayBuffer: async () => plane.slice(from, from + Number(q.get("blocks")) * block).buffer };
  },
  get: async (path) => {
    const ordinal = Number(new URLSearchParams(path.split("?")[1]).get("from"));
    return { items: [{ ordinal, key: `K-${ordinal}` }] };
  },
};
const { nextFailed } = await import("../static/app/parts/neighbors.js");

test("each failed item leads to its neighbors, and the ends to nothing", async () => {
  const items = 300 * block + 17;
  plane = new Uint8Array(items).fill(5);
  const failed = [0, 1, block - 1, block, 5 * block + 3, 140 * block, 299 * block, items - 1];
  for (const o of failed) plane[o] = 6;
  for (let i = 0; i < failed.length; i++) {
    assert.equal((await nextFailed("r", failed[i], 1, items))?.ordinal, failed[i + 1]);
    assert.equal((await nextFailed("r", failed[i], -1, items))?.ordinal, failed[i - 1]);
  }
  assert.deepEqual(await nextFailed("r", 200, 1, items), { ordinal: block - 1, key: `K-${block - 1}` });
});

test("a run without failures is looked through in few requests", async () => {
  plane = new Uint8Array(1000 * block).fill(5);
  asked = 0;
  assert.equal(await nextFailed("r", 500 * block, 1, plane.length), null);
  assert.equal(await nextFailed("r", 500 * block, -1, plane.length), null);
  assert.ok(asked <= 10, `${asked} requests`);
});

test("a run whose size is not known has an end anyway", async () => {
  plane = new Uint8Array(3 * block + 5).fill(5);
  plane[3 * block + 4] = 6;
  assert.equal((await nextFailed("r", 7, 1)).ordinal, 3 * block + 4);
  assert.equal(await nextFailed("r", 3 * block + 4, 1), null);
});
