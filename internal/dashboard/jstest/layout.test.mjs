import assert from "node:assert/strict";
import test from "node:test";
import { Layout, bandHeight, fit } from "../static/app/heatmap/layout.js";

const shapes = [[1, 1], [7, 3], [100, 10], [20_000, 173], [20_001, 100], [50_000, 333], [8192 * 5 + 3, 77]];

test("every item has a cell of its own, and the cell has the item", () => {
  for (const [items, cols] of shapes) {
    const layout = new Layout(items, cols);
    const seen = new Set();
    for (let i = 0; i < items; i++) {
      const [x, y] = [layout.x(i), layout.y(i)];
      assert.ok(x < layout.cols && y < layout.rows, `${i} of ${items} is at ${x}, ${y}`);
      assert.equal(layout.at(x, y), i);
      seen.add(y * layout.cols + x);
    }
    assert.equal(seen.size, items);
  }
});

test("there is no item outside, nor after the last one", () => {
  const layout = new Layout(20_001, 100);
  assert.equal(layout.at(-1, 0), -1);
  assert.equal(layout.at(0, -1), -1);
  assert.equal(layout.at(100, 0), -1);
  assert.equal(layout.at(layout.cols - 1, layout.rows - 1), -1);
  assert.equal(layout.nearest(1e6, 1e6), 20_000);
  assert.equal(layout.nearest(-5, -5), 0);
});

test("a range is covered exactly, each cell once", () => {
  let seed = 7;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  for (const [items, cols] of shapes) {
    const layout = new Layout(items, cols);
    for (let round = 0; round < 60; round++) {
      const from = random(items);
      const to = from + random(Math.min(items - from, 9000));
      const covered = new Map();
      for (const r of layout.rects(from, to)) {
        for (let y = r.y; y < r.y + r.h; y++) {
          for (let x = r.x; x < r.x + r.w; x++) covered.set(layout.at(x, y), (covered.get(layout.at(x, y)) ?? 0) + 1);
        }
      }
      assert.equal(covered.size, to - from + 1, `${from} to ${to} of ${items}`);
      for (let i = from; i <= to; i++) assert.equal(covered.get(i), 1);
    }
  }
});

test("a chunk is a rectangle, not a hair", () => {
  const layout = new Layout(1_000_000, 1400);
  const [head, body] = layout.rects(8 * 100, 8 * 100 + 499);
  assert.equal(bandHeight(1_000_000), 8);
  assert.deepEqual(head, { x: 100, y: 0, w: 62, h: 8 });
  assert.deepEqual(body, { x: 162, y: 0, w: 1, h: 4 });
});

test("a map fits its canvas and fills it well", () => {
  for (const items of [1, 12, 500, 20_000, 100_000, 1_000_000, 10_000_000]) {
    for (const [w, h] of [[1000, 560], [358, 420], [2880, 1200]]) {
      const { layout, cell } = fit(items, w, h);
      assert.ok(layout.cols * cell <= w + 1e-6 && layout.rows * cell <= h + 1e-6, `${items} in ${w} × ${h}`);
      if ((w * h) / items < 36 * 36) { // else cells are as large as they get
        assert.ok(layout.cols * layout.rows * cell * cell > w * h * 0.5, `${items} leave ${w} × ${h} empty`);
      }
    }
  }
});
