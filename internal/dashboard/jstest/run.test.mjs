import assert from "node:assert/strict";
import test from "node:test";
import { register } from "node:module";

// Modules of the page import components; what is tested here are their pure functions.
register("data:text/javascript," + encodeURIComponent(`
  const names = ["html", "useState", "useEffect", "useMemo", "useRef", "useCallback", "useLayoutEffect", "signal", "computed", "effect"];
  const ui = ["Badge", "Button", "ButtonLink", "Card", "Check", "Dialog", "Empty", "ErrorBox", "Field", "Icon", "Progress", "Select",
    "Skeleton", "StateBadge", "Table", "Text", "Time", "toast", "useLoad", "now", "Menu", "confirm", "Copy", "Page"];
  const none = (all) => all.map((n) => "export const " + n + " = () => {};").join("");
  const source = (name) => {
    if (/\\/html\\.js$/.test(name)) return none(names);
    if (/\\/ui\\.js$/.test(name)) return none(ui);
    if (/\\/api\\.js$/.test(name)) return none(["conflict", "query", "segment"]) + "export const api = {}; export const BASE = '';";
    if (/\\/router\\.js$/.test(name)) return none(["setQuery", "go", "Link", "namespace", "route", "within"]);
    if (/\\/stream\\.js$/.test(name)) return none(["stream"]);
    if (/\\/session\\.js$/.test(name)) return none(["can", "session"]);
    if (/\\/explain\\.js$/.test(name)) return none(["Explanation"]);
    return null;
  };
  export async function resolve(name, context, next) {
    const text = source(name);
    return text === null ? next(name, context) : { url: "data:text/javascript," + encodeURIComponent(text), shortCircuit: true };
  }`));
const { columns, placed, stepsOf } = await import("../static/app/parts/stepgraph.js");
const { sideBySide, fan, forecastText, spanText } = await import("../static/app/parts/forecast.js");
const { clock } = await import("../static/app/format.js");
const { parse, shown, slidTo, supposing } = await import("../static/app/run/pacing.js");
const { pieces } = await import("../static/app/charts/chart.js");
const { latency, middles, shortTime, sum, throughput } = await import("../static/app/charts/timeline.js");
const { axis, bands, marks, spans } = await import("../static/app/charts/lanes.js");
const { by, headline } = await import("../static/app/charts/happened.js");
const { errorShare, rateOf } = await import("../static/app/parts/rates.js");
const { beside } = await import("../static/app/run/beside.js");
const { movement } = await import("../static/app/run/live.js");
const { outcome } = await import("../static/app/run/canary.js");
const { linksOf } = await import("../static/app/parts/attempts.js");

const names = (all) => all.map((column) => column.map((s) => s.name));

test("each step stands behind all that it needs", () => {
  const steps = [
    { name: "accounts" }, { name: "transactions" }, { name: "statement", needs: ["accounts", "transactions"] },
    { name: "mail", needs: ["statement", "accounts"] }, { name: "branches" },
  ];
  assert.deepEqual(names(columns(steps)), [["accounts", "transactions", "branches"], ["statement"], ["mail"]]);
  assert.deepEqual(names(columns([{ name: "only" }])), [["only"]]);
});

test("a graph of steps has what goes side by side in one column, centered", () => {
  const { boxes, width, height } = placed(stepsOf({ steps: ["a", "b", "both"], needs: [[], [], ["a", "b"]] }));
  const [a, b, both] = boxes;
  assert.equal(a.x, b.x);
  assert.ok(both.x > a.x && both.y === (a.y + b.y) / 2 && width > both.x && height > b.y);
  assert.deepEqual(names(columns(stepsOf({ steps: ["a", "b"], needs: undefined }))), [["a", "b"]]);
});

const second = (n) => new Date(Date.UTC(2026, 10, 22, 10, 0, n)).toISOString();
const at = (n) => Date.parse(second(n)) / 1000;

test("what lasted is a band, from its beginning to its end", () => {
  const entries = [ // newest first, as the server has them
    { at: second(50), kind: "action", what: "pause", who: "bob" },
    { at: second(40), kind: "breaker", what: "closed", who: "mail" },
    { at: second(30), kind: "breaker", what: "open", who: "mail" },
    { at: second(28), kind: "outage", what: "closed", who: "tranche" },
    { at: second(25), kind: "outage", what: "open", who: "tranche" },
    { at: second(20), kind: "action", what: "resume", who: "ann" },
    { at: second(10), kind: "action", what: "pause", who: "ann" },
    { at: second(5), kind: "breaker", what: "closed", who: "other" }, // it opened before all of this
  ];
  assert.deepEqual(bands(entries, [at(0), at(60)]), [
    { lane: "breaker of other", from: at(0), to: at(5) }, { lane: "paused", from: at(10), to: at(20) },
    { lane: "no node running", from: at(25), to: at(28) }, { lane: "breaker of mail", from: at(30), to: at(40) },
    { lane: "paused", from: at(50), to: at(60) },
  ]);
  assert.deepEqual(marks(entries, [at(0), at(60)]), []);
});

test("what happened at once is one mark, and what was before the axis none", () => {
  const entry = (n, kind, what) => ({ at: second(n), kind, what, who: "ann" });
  const found = marks([entry(30, "event", "completed"), entry(11, "service", "bills@1"), entry(10, "action", "start"), entry(1, "note", "note")],
    [at(10), at(110)]);
  assert.deepEqual(found.map((m) => m.entries.map((e) => e.what)), [["start", "bills@1"], ["completed"]]);
});

test("a step lasts from its first request that ended to its last", () => {
  const timeline = { from: second(0), bucket_seconds: 10, steps: [
    { step: "a", done: [0, 1, 0, 0], requests: [0, 1, 1, 0] }, { step: "b", done: [0, 0, 0, 0], requests: [0, 0, 0, 0] },
  ] };
  assert.deepEqual(axis(timeline), [at(0), at(40)]);
  assert.deepEqual(spans(timeline), [{ lane: "a", step: 0, from: at(10), to: at(30) }]);
});

test("what happened is told in words, and by whom where it was a person", () => {
  assert.equal(headline({ kind: "service", what: "bills@1.2.0", who: "statement" }), "bills@1.2.0 first answered at statement");
  assert.equal(headline({ kind: "event", what: "completed", who: "tranche", text: "generation 2" }), "Completed, generation 2");
  assert.equal(headline({ kind: "action", what: "new_thing", who: "ann" }), "new thing");
  assert.equal(headline({ kind: "note", what: "note", who: "\u202eann" }), "Note");
  assert.equal(by({ kind: "action", what: "pause", who: "tranche" }), "");
  assert.equal(by({ kind: "note", what: "note", who: "ann" }), "ann");
});

test("settings are read as people write them", () => {
  const chunk = { name: "chunk", auto: true, least: 1, most: 8192 };
  const rate = { name: "rate", auto: false, least: 0, most: 1e9, zero: "no limit" };
  assert.deepEqual(parse(chunk, " 1,000 "), { value: 1000 });
  assert.deepEqual(parse(chunk, "AUTO"), { value: "auto" });
  for (const wrong of ["", "0", "8193", "1.5", "many", "-3", "1e99"]) assert.ok(parse(chunk, wrong).error, wrong);
  assert.deepEqual(parse(rate, ""), { value: 0 });
  assert.deepEqual(parse(rate, "no limit"), { value: 0 });
  assert.deepEqual(parse(rate, "0.5"), { value: 0.5 });
  assert.ok(parse(rate, "auto").error);
  assert.equal(shown(chunk, { chunk: 500, chunk_auto: true }), "auto");
  assert.equal(shown(rate, {}), "");
  assert.equal(shown(rate, { rate: 20 }), "20");
});

test("the charts are per second, and add up", () => {
  const timeline = {
    from: "2026-11-22T10:00:00Z", bucket_seconds: 2,
    steps: [{ step: "a", done: [2, 4], failed: [0, 2], p50_ms: [1, null], p99_ms: [3, null] }],
  };
  assert.deepEqual(middles(timeline), [Date.parse("2026-11-22T10:00:01Z") / 1000, Date.parse("2026-11-22T10:00:03Z") / 1000]);
  const [done, failed] = throughput(timeline);
  assert.deepEqual(done.values, [1, 2]);
  assert.deepEqual(failed.values, [0, 1]);
  assert.deepEqual(latency(timeline).map((s) => s.label), ["p50", "p99"]);
  assert.deepEqual(sum([[1, 2], [3]]), [4, 2]);
  assert.deepEqual(sum([]), []);
});

test("an open breaker hides what was measured before", () => {
  const e = { rate: 77.5, items: 100, errors: 0 };
  assert.deepEqual([rateOf(e), errorShare(e)], ["77.5/s", "0 %"]);
  assert.deepEqual([rateOf, errorShare].map((f) => f({ ...e, pace: { breaker: "open" } })), ["–", "–"]);
});

test("nothing is drawn across what was not measured, and values of an axis are short", () => {
  assert.deepEqual(pieces([1, 2, 3, 4, 5], [7, null, 8, 9, undefined]), [[[1, 7]], [[3, 8], [4, 9]]]);
  assert.deepEqual([0.1, 10, 1000, 1e5, 1e6, 1e7].map(shortTime), ["0.1 ms", "10 ms", "1 s", "100 s", "17 min", "2.8 h"]);
});

test("a run moves when any count of a step does", () => {
  const run = { state: "running", generation: 1, done: 0, failed: 0, steps: [{ done: 1, failed: 0, skipped: 0 }] };
  assert.notEqual(movement(run), movement({ ...run, steps: [{ done: 2, failed: 0, skipped: 0 }] }));
  assert.equal(movement(run), movement(structuredClone(run)));
});

test("a canary's result is that of its generation", () => {
  const run = { generation: 2, done: 900, failed: 50 };
  assert.equal(outcome(run, undefined), null, "counts of the whole run say nothing of the sample of a rerun");
  assert.deepEqual(outcome(run, { generations: [{ generation: 1, done: 900, failed: 100 }, { generation: 2, done: 48, failed: 2 }] }), { done: 48, failed: 2 });
  assert.deepEqual(outcome({ generation: 1, done: 19, failed: 1 }, undefined), { done: 19, failed: 1 });
});

test("a forecast is a band, what is waited for, or why there is none", () => {
  const now = new Date(2026, 10, 27, 4, 0, 0);
  const at = (minutes) => new Date(now.getTime() + minutes * 60000).toISOString();
  const said = (minutes) => clock(at(minutes), { now });
  assert.deepEqual(forecastText({ p10: at(10), p50: at(16), p90: at(25) }, now), { value: said(16), more: `${said(10)} to ${said(25)}` });
  const then = { p10_seconds: 2400, p50_seconds: 2800, p90_seconds: 3300 };
  assert.deepEqual(forecastText({ waits_for: "approval of step send", waits_from: at(5), then }, now),
    { value: "40 to 55 min", more: `after approval of step send, from about ${said(5)}` });
  assert.deepEqual(forecastText({ why_not: "its items are being loaded" }, now), { value: "not yet", more: "its items are being loaded" });
  assert.equal(spanText({ p10_seconds: 30, p90_seconds: 30.2 }), "30 s");
});

test("the fan begins where the run is and reaches the end within its band", () => {
  const at = (s) => new Date(s * 1000).toISOString();
  const run = { items: 100, steps: [{}], progress: 0.5, forecast: { p10: at(150), p50: at(180), p90: at(200) } };
  const timeline = { from: at(0), to: at(100), bucket_seconds: 50, steps: [{ done: [20, 30], failed: [0, 0] }] };
  const drawn = fan(run, timeline);
  assert.deepEqual(drawn.at, [300, 45]);
  assert.deepEqual(drawn.way, [[0, 90], [150, 72], [300, 45]]);
  assert.deepEqual([drawn.p10, drawn.p50, drawn.p90], [[450, 0], [540, 0], [600, 0]]);
  assert.equal(fan({ ...run, forecast: { why_not: "no one knows" } }, timeline), null);
});

test("what is supposed is drawn beside what is", () => {
  const at = (s) => new Date(s * 1000).toISOString();
  const of = (p10, p50, p90) => ({ forecast: { p10: at(p10), p50: at(p50), p90: at(p90) } });
  assert.deepEqual(sideBySide({ at: at(100), variants: [of(150, 200, 300), of(120, 140, 160)] }),
    [{ low: 25, middle: 50, high: 100 }, { low: 10, middle: 20, high: 30 }]);
  assert.equal(sideBySide({ at: at(0), variants: [of(1, 2, 3), { forecast: { why_not: "no one knows" } }] }), null);
});

test("a slider goes to a multiple of what there is", () => {
  const flight = { name: "in_flight", least: 1, most: 100 };
  assert.deepEqual([-24, 8, 24].map((at) => slidTo(flight, "16", at)), ["2", "32", "100"]);
  assert.equal(slidTo(flight, "auto", 8, { slices_in_flight: 5 }), "10");
  assert.equal(slidTo({ name: "rate", least: 0, most: 1e9 }, "", -8, {}, { rate: 12.5 }), "6.25");
  assert.equal(slidTo({ name: "priority", by: [-1, 1] }, "-3", 5), "2");
});

test("a number that is being typed is supposed", () => {
  const [step, field] = [{ name: "send" }, { name: "in_flight", auto: true, least: 1, most: 100 }];
  const run = { state: "running" };
  assert.equal(supposing(run, step, field, "8", "32"), "send.in_flight=32");
  assert.equal(supposing(run, undefined, { name: "priority", least: -9, most: 9 }, "0", "5"), "priority=5");
  for (const text of ["8", "x", "auto", ""]) assert.equal(supposing(run, step, field, "8", text), null);
});

test("links of a request have its IDs; its trace is its slice with the halves changed", () => {
  const slice = "11111111-2222-4333-8444-555555555555";
  assert.deepEqual(linksOf({ logs: "https://l/?q={run}+{slice}", trace: "https://t/{trace}" }, "r 1", slice),
    [["logs", `https://l/?q=r%201+${slice}`], ["trace", "https://t/84445555555555551111111122224333"]]);
  assert.deepEqual(linksOf(undefined, "r", slice), []);
});

test("an earlier run is where it was after the same time", () => {
  const timeline = { bucket_seconds: 10, steps: [{ done: [10, 20, 10], failed: [0, 4, 6] }, { done: [0, 20, 30], failed: [0, 0, 0] }] };
  assert.deepEqual(beside(timeline, 15), { share: 0.32, failed: 2, rate: 4 });
  assert.deepEqual(beside(timeline, 100), { share: 1, failed: 10, rate: 0 });
  assert.deepEqual(beside({ bucket_seconds: 1, steps: [] }, 5), { share: 0, failed: 0, rate: 0 });
});
