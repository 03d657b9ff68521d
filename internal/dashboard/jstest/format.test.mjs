import assert from "node:assert/strict";
import test from "node:test";
import { failedShare, near, percent, setting, timed } from "../static/app/format.js";

test("settings are written like other durations", () => {
  for (const [text, want] of [
    ["24h0m0s", "1 d"], ["1h30m0s", "1 h 30 min"], ["2m0s", "2 min"], ["90s", "1 min 30 s"], ["1.5s", "1.5 s"],
    ["168h0m0s", "7 d"], ["soon", "soon"], ["", ""],
  ]) {
    assert.equal(setting(text), want, text);
  }
});

test("lines of a chart are round, few and inside", async () => {
  const { seconds, timeLabel, values } = await import("../static/app/charts/ticks.js");
  for (const length of [1, 7, 95, 3000, 90000, 4e7]) {
    const span = [1795514400.3, 1795514400.3 + length];
    const { step, all } = seconds(span, 8);
    assert.ok(all.length <= 9 && (all.length >= 2 || length > 1e7), `${length}: ${all.length} lines`);
    assert.ok(all.every((t) => t >= span[0] && t <= span[1]));
    assert.equal(new Set(all.map((t) => timeLabel(t, step))).size, all.length);
  }
  const rate = values("linear", [0, 28_700], 100, 0);
  assert.deepEqual(rate.ticks, [0, 10_000, 20_000, 30_000]);
  assert.equal(rate.y(0), 100);
  assert.deepEqual(values("linear", [], 100, 0).ticks, [0, 0.5, 1]);
  const late = values("log", [3, 900], 100, 0);
  assert.deepEqual(late.ticks, [1, 10, 100, 1000]);
  assert.deepEqual([late.y(0), late.y(1), late.y(1000)], [100, 100, 0]);
});

// The command line has the same table.
test("a share is the same percentage everywhere", () => {
  for (const [share, want] of [
    [0, "0 %"], [1e-7, "0.01 %"], [3 / 20_000, "0.02 %"], [0.0049, "0.49 %"], [0.0146, "1.5 %"], [0.07, "7 %"], [0.125, "13 %"],
    [0.29, "29 %"], [0.5, "50 %"], [0.946, "94.6 %"], [0.9949, "99.49 %"], [0.9999999, "99.99 %"], [1, "100 %"], [NaN, "–"],
  ]) {
    assert.equal(percent(share), want, share);
  }
});

test("the time of a run that was run again is told as that of one generation", () => {
  assert.deepEqual([{ generation: 1, finished_at: "then" }, { generation: 2, finished_at: "then" }, { generation: 2 }].map(timed),
    ["", "last generation", "this generation"]);
});

test("failures are a share of what finished, or of what a step has finished", () => {
  assert.equal(failedShare({ done: 0, failed: 200, items: 2000, steps: [{ done: 1800, failed: 200, skipped: 0 }] }), "10 %");
  assert.equal(failedShare({ done: 150, failed: 50, items: 2000 }), "25 %");
});

test("a mistyped name finds the one that was meant", () => {
  const names = ["bank_accounts", "interest", "bills"];
  assert.deepEqual(["bils", "Intrest", "bank_acounts", "xyz", ""].map((text) => near(text, names)), ["bills", "interest", "bank_accounts", "", ""]);
  assert.equal(near("bills", []), "");
});

test("times name their zone, and follow the choice", async () => {
  const { setTimes, times } = await import("../static/app/zone.js");
  const { clock } = await import("../static/app/format.js");
  const now = "2026-11-22T23:30:00Z";
  setTimes({ zone: "utc" });
  assert.equal(clock("2026-11-22T22:30:05Z", { now }), "22:30:05 UTC");
  times.own = "Asia/Kolkata";
  setTimes({ zone: "schedule" });
  assert.equal(clock("2026-11-22T10:00:00Z", { now }), "2026-11-22 15:30:00 GMT+5:30");
  times.own = "";
  assert.match(clock(now, { date: true }), / (UTC|GMT|[A-Z]{3,4})/);
});
