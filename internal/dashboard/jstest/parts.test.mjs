import assert from "node:assert/strict";
import test from "node:test";
import { changes } from "../static/app/parts/changes.js";
import { sampleOf, suggestion } from "../static/app/parts/suggestion.js";
import { bounds, example, members, typeText } from "../static/app/parts/schema.js";

test("changes are told by their paths, and nothing is not told as something", () => {
  const before = { rate: 0, steps: { a: { chunk: 500 } }, codes: [], note: null };
  const after = { rate: 5000, steps: { a: { chunk: 500, auto: true } }, codes: ["busy", "late"], note: "" };
  assert.deepEqual(changes(before, after), [
    { name: "codes", was: undefined, is: "busy, late" },
    { name: "rate", was: "0", is: "5,000" },
    { name: "steps.a.auto", was: undefined, is: "yes" },
  ]);
  assert.deepEqual(changes(undefined, null), []);
});

test("a smaller request is suggested where something speaks for it", () => {
  const step = { settings: { chunk: 500 } };
  assert.equal(suggestion({ code: "handler_timeout" }, step, null).chunk, 250);
  assert.equal(suggestion({ code: "handler_timeout" }, { settings: { chunk: 1 } }, null), null);
  assert.equal(suggestion({ code: "handler_timeout" }, { settings: { chunk: 500, chunk_auto: true } }, null), null);
  assert.equal(suggestion({ code: "closed" }, step, { chunk: 900 }), null);
  assert.equal(suggestion({ code: "closed" }, step, { chunk: 64 }).chunk, 64);
  assert.equal(suggestion({ code: "closed" }, step, { chunk: 64, chunk_cap: 100 }).chunk, 100);
  assert.equal(suggestion({ code: "closed" }, { settings: { chunk: 50 } }, { chunk_cap: 100 }), null);
  assert.equal(suggestion(null, null, undefined), null);
});

test("a sample is some, and not many", () => {
  assert.deepEqual([20, 500, 100_000].map(sampleOf), [5, 10, 50]);
});

const doc = {
  components: { schemas: {
    Node: { type: "object", required: ["name"], properties: {
      name: { type: "string", examples: ["n1"] }, next: { $ref: "#/components/schemas/Node" }, tags: { type: ["array", "null"], items: { type: "string" } },
    } },
  } },
};
const ref = { $ref: "#/components/schemas/Node" };

test("schemas that refer to themselves are described, and have examples", () => {
  assert.deepEqual(members(doc, ref).map(([name, , required]) => [name, required]), [["name", true], ["next", false], ["tags", false]]);
  assert.deepEqual(members(doc, { type: "array", items: ref }).length, 3);
  assert.equal(typeText(doc, { type: "array", items: ref }), "array of Node");
  assert.equal(typeText(doc, { oneOf: [{ type: "integer" }, { type: "string" }] }), "integer or string");
  assert.equal(example(doc, ref).name, "n1");
  assert.equal(typeText(doc, undefined), "");
  assert.doesNotThrow(() => example(doc, { $ref: "#/components/schemas/Gone" }));
});

test("bounds are told in words", () => {
  assert.deepEqual(bounds({ minimum: 1, maximum: 8192, default: 500 }), ["default 500", "1 to 8,192"]);
  assert.deepEqual(bounds({ enum: ["a", "b"] }), [`"a", "b"`]);
});
