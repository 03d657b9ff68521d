import assert from "node:assert/strict";
import test from "node:test";
import { attention, median, merge, shade, stuck } from "../static/app/runs/rows.js";

const run = (id, more = {}) => ({ id, state: "completed", failed: 0, items: 100, rate: 0, ...more });
const ids = (runs) => runs.map((r) => r.id).join("");

test("what needs attention is what the stream says of its runs, and the server of the rest", () => {
  const live = { runs: [run("9", { state: "running", blocker: {} }), run("5", { state: "running", rate: 3 }),
    run("4", { state: "paused", hold: {} }), run("3", { hold: {} })] };
  assert.equal(ids(attention([run("5", { state: "paused", hold: {} }), run("1", { state: "paused" })], live)), "941");
  assert.equal(ids(attention(undefined, null)), "");
  assert.ok(stuck(live.runs[0]) && !stuck({ ...live.runs[1], started_at: "2026-01-01" }));
  assert.ok(stuck(run("1", { state: "running", started_at: "2026-01-01" })));
});

test("new runs of a schedule take its line, and their predecessor goes into the strip", () => {
  const listed = [run("7"), run("4", { schedule: "s", past: [{ id: "2" }, { id: "4" }] })];
  const live = { runs: [run("9", { schedule: "s" }), run("8", { schedule: "s" }), run("4", { schedule: "s" }), run("1")] };
  const rows = merge(listed, live, true, true);
  assert.equal(ids(rows), "97");
  assert.equal(ids(rows[0].past), "249");
  assert.equal(ids(merge(listed, live, false, true)), "74");
  assert.equal(ids(merge(listed, live, true, false)), "971");
  assert.equal(merge(undefined, live, true, false), undefined);
});

test("few failures are visible, and unlike many; a median is in the middle", () => {
  assert.deepEqual([0, 1, 40].map((failed) => shade(run("1", { failed }))), [0, 0.25, 0.4]);
  assert.deepEqual([median([]), median([3, 1, 2]), median([4, 1])], [undefined, 2, 2.5]);
});
