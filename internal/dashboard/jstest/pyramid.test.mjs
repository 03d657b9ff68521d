import assert from "node:assert/strict";
import test from "node:test";
import { Layout, fit } from "../static/app/heatmap/layout.js";
import { Pyramid } from "../static/app/heatmap/pyramid.js";
import { draw, levelFor } from "../static/app/heatmap/raster.js";
import { Plane, State, UNLOADED } from "../static/app/heatmap/store.js";
import { Viewport } from "../static/app/heatmap/viewport.js";
import { LAYERS, blendAt, blends, colors, stateRank } from "../static/app/heatmap/palette.js";

function random(seed) {
  return (n) => (seed = (seed * 48271) % 2147483647) % n;
}

// The oracle: the highest rank among all items of a cell of a level, one by one.
function worst(layout, plane, rank, level, x, y) {
  const size = 2 ** level;
  let best = UNLOADED;
  for (let cy = y * size; cy < (y + 1) * size; cy++) {
    for (let cx = x * size; cx < (x + 1) * size; cx++) {
      const i = layout.at(cx, cy);
      if (i >= 0 && rank[plane.data[i]] > rank[best]) best = plane.data[i];
    }
  }
  return best;
}

function check(pyramid) {
  const { layout, plane, rank } = pyramid;
  pyramid.levels.forEach((level, i) => {
    for (let y = 0; y < level.h; y++) {
      for (let x = 0; x < level.w; x++) {
        const want = worst(layout, plane, rank, i + 1, x, y);
        assert.equal(rank[level.data[y * level.w + x]], rank[want], `level ${i + 1} at ${x}, ${y}`);
      }
    }
  });
}

test("every level has the worst of its items, also after changes", () => {
  const next = random(11);
  const rank = stateRank();
  for (const [items, cols] of [[1, 1], [95, 10], [1000, 37], [20_001, 211]]) {
    const plane = new Plane(items);
    const pyramid = new Pyramid(new Layout(items, cols), plane, rank);
    plane.onChange = (from, to) => pyramid.touch(from, to);
    plane.load(0, Uint8Array.from({ length: items }, () => next(9)));
    pyramid.flush();
    check(pyramid);
    for (let round = 0; round < 4; round++) {
      for (let i = 0; i < 5; i++) plane.set(next(items), 1 + next(Math.min(items, 700)), next(9));
      pyramid.flush();
      check(pyramid);
    }
  }
});

test("one failed item of a million is a pixel from afar, wherever it is", () => {
  const items = 1_000_000;
  const [width, height] = [358, 300];
  const { layout, cell } = fit(items, width, height);
  const plane = new Plane(items);
  plane.load(0, new Uint8Array(items).fill(State.DONE));
  const pyramid = new Pyramid(layout, plane, stateRank());
  plane.onChange = (from, to) => pyramid.touch(from, to);
  const view = new Viewport();
  view.resize(width, height, layout, cell);
  assert.ok(levelFor(view.scale, pyramid.levels.length) >= 1, "several items share a pixel");
  const shades = new Uint32Array(256).fill(1);
  shades[State.FAILED] = 7;
  const pixels = new Uint32Array(width * height);
  const next = random(5);
  for (const at of [0, items - 1, ...Array.from({ length: 40 }, () => next(items))]) {
    plane.set(at, 1, State.FAILED);
    pyramid.flush();
    draw(pixels, width, height, view, pyramid, shades, 0);
    const red = pixels.reduce((n, p) => n + (p === 7), 0);
    assert.ok(red >= 1 && red <= 4, `item ${at} has ${red} pixels`);
    const { x, y } = { x: layout.x(at), y: layout.y(at) };
    const px = Math.floor(view.ox + (x + 0.5) * view.scale);
    const py = Math.floor(view.oy + (y + 0.5) * view.scale);
    const near = [];
    for (let dy = -2; dy <= 2; dy++) for (let dx = -2; dx <= 2; dx++) near.push(pixels[(py + dy) * width + px + dx]);
    assert.ok(near.includes(7), `item ${at} is drawn where it is`);
    plane.set(at, 1, State.DONE);
  }
});

test("where there is no item nothing is drawn", () => {
  for (const items of [5, 101, 20_003]) {
    const { layout, cell } = fit(items, 200, 120);
    const plane = new Plane(items);
    plane.load(0, new Uint8Array(items).fill(State.DONE));
    const pyramid = new Pyramid(layout, plane, stateRank());
    pyramid.flush();
    const view = new Viewport();
    view.resize(200, 120, layout, cell);
    const shades = new Uint32Array(256).fill(9);
    const pixels = new Uint32Array(200 * 120);
    draw(pixels, 200, 120, view, pyramid, shades, 3);
    for (let py = 0; py < 120; py++) {
      for (let px = 0; px < 200; px++) {
        const at = view.toMap(px + 0.5, py + 0.5);
        const item = layout.at(Math.floor(at.x), Math.floor(at.y));
        const pixel = pixels[py * 200 + px];
        if (item < 0 && view.scale >= 1) assert.equal(pixel, 3, `${items}: ${px}, ${py}`);
        assert.ok(pixel === 3 || pixel === 9);
      }
    }
    assert.ok(pixels.includes(9));
  }
});

test("how many of the items that share a pixel are bad is seen", () => {
  const items = 128 * 128;
  const plane = new Plane(items);
  const pyramid = new Pyramid(new Layout(items, 128), plane, stateRank());
  plane.onChange = (from, to) => pyramid.touch(from, to);
  plane.load(0, new Uint8Array(items).fill(State.DONE));
  plane.set(5, 1, State.FAILED);
  plane.set(items / 2, items / 2, State.FAILED);
  pyramid.flush();
  const level = pyramid.levels[5]; // 2 × 2
  assert.deepEqual([...level.data], [State.FAILED, State.DONE, State.FAILED, State.FAILED]);
  assert.deepEqual([...level.most], [State.DONE, State.DONE, State.FAILED, State.FAILED]);
  assert.ok(level.share[0] < 3 && level.share[2] === 255, `${level.share}`);
  const states = Array.from({ length: 9 }, (_, i) => [i * 20, 0, 0]);
  const all = colors(LAYERS.state, { dark: false, states, none: [0, 0, 0], ground: [0, 0, 0], unloaded: [0, 0, 0] });
  const red = (most, worst, share) => blends(all)[blendAt(most, worst, share)] & 255;
  assert.equal(red(State.DONE, State.DONE, 255), 100);
  assert.equal(red(State.FAILED, State.FAILED, 255), 120);
  const few = red(State.DONE, State.FAILED, 1), half = red(State.DONE, State.FAILED, 128);
  assert.ok(few > 100 && few < half && half < 120, `${few} ${half}`);
});
