import assert from "node:assert/strict";
import test from "node:test";
import { causes, verdict } from "../static/app/parts/verdict.js";

const a = { id: "a", code: "no_rate", shape: "no rate for #" };
const b = { id: "b", code: "closed", shape: "" };
const c = { id: "c", code: "other", shape: "" };

test("a sample's outcome is a sentence", () => {
  assert.equal(verdict({ done: 5, failed: 0 }), "All 5 of the canary are done.");
  assert.equal(verdict({ done: 0, failed: 1 }), "The item of the canary failed again.");
  assert.equal(verdict({ done: 3, failed: 2 }, null, false), "2 of the 5 of the canary failed.");
  assert.equal(verdict({ done: 0, failed: 5 }, { same: [a], other: [] }),
    "All 5 of the canary failed again, for the same cause as before: no_rate “no rate for #”.");
  assert.equal(verdict({ done: 0, failed: 5 }, { same: [], other: [b] }),
    "All 5 of the canary failed again, for another cause than before: closed.");
  assert.equal(verdict({ done: 1, failed: 4 }, { same: [b], other: [c] }),
    "4 of the 5 of the canary failed again: as before with closed, and otherwise than before with other.");
});

test("causes are told apart", () => {
  assert.deepEqual(causes([a, b], { failed: true }, [a, c]), { same: [a], other: [c] });
  // b did not run again: it is not of the canary
  assert.deepEqual(causes([a, b], { groups: ["a"] }, [b, c]), { same: [], other: [c] });
  assert.equal(causes([a], { keys: ["k"] }, [a]), null);
  assert.equal(causes(null, { failed: true }, [a]), null);
});
