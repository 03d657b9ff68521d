import assert from "node:assert/strict";
import test from "node:test";
import { Bands, order } from "../static/app/heatmap/bands.js";
import { Pyramid } from "../static/app/heatmap/pyramid.js";
import { stateRank } from "../static/app/heatmap/palette.js";
import { Plane, State, UNLOADED } from "../static/app/heatmap/store.js";

function random(seed) {
  return (n) => (seed = (seed * 48271) % 2147483647) % n;
}

function make(items, count, width, height, seed = 3) {
  const next = random(seed);
  const groups = Uint8Array.from({ length: items }, () => next(count));
  const plane = new Plane(items);
  plane.load(0, Uint8Array.from({ length: items }, () => next(9)));
  return { groups, plane, next, bands: new Bands(plane, groups, Array.from({ length: count }, (_, g) => `g${g}`), width, height) };
}

test("ordinals are sorted by group, and within it as they are", () => {
  const { order: sorted, first } = order([1, 0, 1, 2, 0], 6, 3); // the sixth came later
  assert.deepEqual([...sorted], [1, 4, 0, 2, 3, 5]);
  assert.deepEqual([...first], [0, 2, 4, 6]);
});

test("every item has a cell of its own, in the lines of its group", () => {
  for (const [items, count, w, h] of [[1, 1, 300, 200], [40, 7, 300, 200], [5000, 51, 700, 300], [60_000, 3, 900, 500]]) {
    const { groups, bands, plane } = make(items, count, w, h);
    assert.ok(bands.rows * bands.cell <= h + 1e-6 && bands.cols * bands.cell <= w + 1e-6, `${items} in ${count} fit`);
    const seen = new Set();
    for (let i = 0; i < items; i++) {
      const [x, y] = [bands.x(i), bands.y(i)];
      assert.equal(bands.at(x, y), i);
      assert.equal(bands.nearest(x + 0.5, y + 0.5), i);
      assert.equal(bands.shown.data[bands.place[i]], plane.data[i]);
      const r = bands.rectOf(groups[i]);
      assert.ok(y >= r.y && y < r.y + r.h);
      seen.add(y * bands.cols + x);
    }
    assert.equal(seen.size, items);
    assert.equal(bands.shown.data.filter((v) => v !== UNLOADED).length, items);
  }
});

test("a range covers its items in each band, and changes reach the summaries", () => {
  const { bands, plane, next } = make(30_000, 9, 400, 300);
  const pyramid = new Pyramid(bands.base, bands.shown, stateRank());
  plane.onChange = (from, to) => bands.update(from, to).forEach((span) => pyramid.touch(...span));
  for (let round = 0; round < 20; round++) {
    const from = next(30_000);
    const to = Math.min(29_999, from + next(900));
    const covered = new Set();
    for (const r of bands.rects(from, to)) {
      for (let y = r.y; y < r.y + r.h; y++) for (let x = r.x; x < r.x + r.w; x++) covered.add(bands.at(x, y));
    }
    assert.equal(covered.size, to - from + 1);
    assert.ok(covered.has(from) && covered.has(to));
  }
  plane.set(0, 30_000, State.DONE);
  pyramid.flush();
  assert.equal(pyramid.levels.at(-1).data[0], State.DONE);
  plane.set(12_345, 1, State.FAILED);
  pyramid.flush();
  assert.equal(pyramid.levels.at(-1).data[0], State.FAILED);
});

test("a million items are put into bands in little time", () => {
  // Of the processor: a machine that is stalled, or does something else, takes none of it.
  const used = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1000; };
  const began = used();
  const { bands, plane } = make(1_000_000, 51, 1200, 600);
  const made = used() - began;
  const at = used();
  for (let i = 0; i < 100; i++) bands.update(i * 9000, i * 9000 + 500);
  const updated = used() - at;
  assert.equal(bands.items, plane.items);
  assert.ok(made < 5000 && updated < 2000, `${made} ms, then ${updated} ms`);
});
