import assert from "node:assert/strict";
import test from "node:test";
import { fit } from "../static/app/heatmap/layout.js";
import { Viewport } from "../static/app/heatmap/viewport.js";

function viewport(items = 1_000_000, width = 1000, height = 500) {
  const { layout, cell } = fit(items, width, height);
  const view = new Viewport();
  view.resize(width, height, layout, cell);
  return { view, layout };
}

test("zooming keeps what is under the pointer", () => {
  const { view } = viewport();
  for (const factor of [1.5, 4, 3, 0.7]) {
    const before = view.toMap(400, 200);
    assert.ok(view.zoomAt(factor, 400, 200));
    const after = view.toMap(400, 200);
    assert.ok(Math.abs(before.x - after.x) < 1 && Math.abs(before.y - after.y) < 1);
  }
});

test("it zooms no further out than to the whole, and no further in than to large cells", () => {
  const { view } = viewport();
  assert.equal(view.zoomAt(0.5, 1, 1), false);
  assert.ok(!view.zoomed);
  assert.ok(view.zoomAt(1e9, 500, 250));
  assert.equal(view.zoomAt(2, 500, 250), false);
  assert.equal(view.scale, view.maxScale);
  view.fit();
  assert.ok(!view.zoomed);
});

test("the map does not leave its canvas", () => {
  const { view } = viewport();
  view.zoomAt(10, 500, 250);
  view.pan(1e9, 1e9);
  assert.deepEqual([view.ox, view.oy], [0, 0]);
  view.pan(-1e9, -1e9);
  assert.ok(Math.abs(view.ox + view.cols * view.scale - view.width) < 1e-6);
  assert.equal(view.pan(-5, 0), false, "there is no further");
});

test("a cell is revealed", () => {
  const { view, layout } = viewport();
  view.zoomAt(20, 0, 0);
  const [x, y] = [layout.x(999_999), layout.y(999_999)];
  view.reveal(x, y);
  const [px, py] = [view.ox + x * view.scale, view.oy + y * view.scale];
  assert.ok(px >= 0 && px < view.width && py >= 0 && py < view.height);
});

test("a resized canvas shows the same part", () => {
  const { view } = viewport();
  view.zoomAt(8, 700, 300);
  const before = view.toMap(500, 250);
  const share = before.x / view.cols;
  const { layout, cell } = fit(1_000_000, 600, 700);
  view.resize(600, 700, layout, cell);
  assert.ok(Math.abs(view.toMap(300, 350).x / view.cols - share) < 0.02);
});
