import assert from "node:assert/strict";
import test from "node:test";
import { adviceOnce } from "../static/app/parts/advice.js";

test("what to do is said first, and once", () => {
  const [resume, errors, show] = ["resume", "errors", "show"].map((what) => ({ do: what, command: "tranche " + what }));
  const { first, groups } = adviceOnce({ advice: [errors], groups: [
    { owner: "timer", advice: [show] }, { owner: "operator", advice: [errors, resume] },
    { owner: "operator", advice: [resume] }, { owner: "timer", advice: [show, errors] }, { owner: "node" },
  ] });
  assert.deepEqual(first, [errors, resume]);
  assert.deepEqual(groups.map((g) => g.advice), [[show], [], [], [], []]);
  assert.deepEqual(adviceOnce({}), { first: [], groups: [] });
});
