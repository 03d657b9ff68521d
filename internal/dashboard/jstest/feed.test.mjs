import assert from "node:assert/strict";
import test from "node:test";
import { register } from "node:module";

// The feed imports the API's module, which imports components: none of it is used here.
register("data:text/javascript," + encodeURIComponent(`
  export async function resolve(name, context, next) {
    if (/\\/api\\.js$/.test(name)) return { url: "data:text/javascript," + encodeURIComponent(
      "export const api = {}; export const query = (q) => '?' + new URLSearchParams(q); export const segment = encodeURIComponent;"), shortCircuit: true };
    return next(name, context);
  }`));
const { Feed, runs } = await import("../static/app/heatmap/feed.js");
const { BLOCK } = await import("../static/app/heatmap/store.js");

// server answers requests for planes when it is told to, with what the truth is then.
function server(items, truth) {
  const waiting = [];
  const raw = (path, { signal }) => new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
    waiting.push({ path, resolve });
  });
  const answer = (n = 0) => {
    const { path, resolve } = waiting.splice(n, 1)[0];
    const q = new URLSearchParams(path.split("?")[1]);
    const from = Number(q.get("from")) * BLOCK;
    const bytes = truth.slice(from, Math.min(items, from + Number(q.get("blocks")) * BLOCK));
    resolve({ headers: new Headers({ "Tranche-Items": String(items) }), arrayBuffer: async () => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) });
  };
  return { raw, answer, waiting };
}

const settle = () => new Promise((resolve) => setImmediate(resolve));

function feedOf({ raw }, choice = {}) {
  const seen = { loaded: 0, errors: [] };
  const feed = new Feed("r", choice, { plane: (p) => (seen.plane = p), loaded: () => seen.loaded++, error: (e) => seen.errors.push(e) }, raw);
  return { feed, seen };
}

test("changes that come while planes are on their way end at the truth", async () => {
  const items = 20_000;
  const truth = new Uint8Array(items).fill(2);
  const s = server(items, truth);
  const { feed, seen } = feedOf(s);
  feed.load();
  await settle();
  // Told before the planes were read, and after: one is older than what is read, one is newer.
  truth.fill(4, 100, 200);
  feed.delta({ step: "", changes: [100, 100, 4] });
  truth.fill(5, 150, 200);
  s.answer();
  feed.delta({ step: "", changes: [150, 50, 5] });
  truth.fill(6, 7, 8);
  feed.delta({ step: "", changes: [7, 1, 6] });
  await settle();
  assert.equal(seen.loaded, 1);
  assert.deepEqual(seen.plane.data, truth);
  assert.deepEqual(seen.errors, []);
});

test("changes of another step are not taken for ours", async () => {
  const truth = new Uint8Array(10).fill(2);
  const s = server(10, truth);
  const { feed, seen } = feedOf(s, { step: "a" });
  feed.load();
  await settle();
  s.answer();
  await settle();
  feed.delta({ step: "b", changes: [0, 10, 6] });
  feed.delta({ step: "a", changes: [3, 1, 5] });
  assert.deepEqual([...seen.plane.data], [2, 2, 2, 5, 2, 2, 2, 2, 2, 2]);
});

test("large runs come in pieces, in any order", async () => {
  const items = 128 * BLOCK * 3 + 77;
  const truth = Uint8Array.from({ length: items }, (_, i) => i % 7);
  const s = server(items, truth);
  const { feed, seen } = feedOf(s);
  feed.load();
  await settle();
  assert.equal(s.waiting.length, 1, "the first says how many there are");
  s.answer();
  await settle();
  feed.delta({ step: "", changes: [items - 1, 1, 8] });
  truth[items - 1] = 8;
  while (s.waiting.length > 0) {
    s.answer(s.waiting.length - 1);
    await settle();
  }
  assert.deepEqual(seen.plane.data, truth);
  assert.equal(seen.plane.loaded, items);
});

test("a run that takes items in grows, and what was there stays", async () => {
  const truth = new Uint8Array(20_000).fill(2);
  const first = server(9000, truth);
  const { feed, seen } = feedOf(first);
  feed.load();
  await settle();
  first.answer();
  await settle();
  const second = server(20_000, truth);
  feed.raw = second.raw;
  feed.grown(20_000);
  await settle();
  assert.match(second.waiting[0].path, /from=1&/, "only what is not known is fetched");
  second.answer();
  await settle();
  assert.deepEqual(seen.plane.data, truth);
});

test("blocks that changed are fetched in few requests", () => {
  assert.deepEqual(runs([1, 2, 3, 9, 40, 41]), [[1, 3], [9, 1], [40, 2]]);
  assert.deepEqual(runs([1, 4, 6]), [[1, 6]]);
  assert.ok(runs(Array.from({ length: 400 }, (_, i) => i)).every(([, n]) => n <= 128));
});
