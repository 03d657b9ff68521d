import assert from "node:assert/strict";
import test from "node:test";
import { LAYERS, bandOf, colors, pack, pixel, rgbOf, stateRank, unpack, valueRank } from "../static/app/heatmap/palette.js";
import { State, UNLOADED } from "../static/app/heatmap/store.js";

const theme = {
  dark: false, states: Array.from({ length: 9 }, (_, i) => [i * 20, 10, 10]), none: [240, 240, 240],
  ground: [255, 255, 255], unloaded: [250, 250, 250],
};

test("every value of a layer is in one band", () => {
  for (const name of ["attempts", "latency", "age"]) {
    const { bands } = LAYERS[name];
    for (let v = 0; v < UNLOADED; v++) assert.equal(bands.filter((b) => v >= b.from && v <= b.to).length, 1, `${name} ${v}`);
  }
});

test("times are packed as the server packs them", () => {
  for (const ms of [1, 9, 250, 1000, 60_000, 1e6]) {
    assert.ok(Math.abs(unpack(pack(ms)) - ms) / ms < 0.07, `${ms}`);
  }
  assert.equal(pack(0), 1);
  assert.equal(LAYERS.latency.bands[bandOf(LAYERS.latency, pack(100))].text, "50–250 ms");
});

test("failed ranks highest, and what is not loaded lowest", () => {
  const rank = stateRank();
  for (let v = 0; v < 9; v++) {
    assert.ok(rank[v] > rank[UNLOADED]);
    if (v !== State.FAILED) assert.ok(rank[State.FAILED] > rank[v]);
  }
  const only = stateRank(new Set([State.READY]));
  assert.ok(only[State.READY] > only[State.FAILED], "what is highlighted shows before all");
  assert.ok(valueRank()[200] > valueRank()[3]);
});

test("what is not highlighted fades", () => {
  const all = colors(LAYERS.state, theme);
  const some = colors(LAYERS.state, theme, new Set([State.FAILED]));
  assert.equal(all[State.FAILED], some[State.FAILED]);
  assert.notEqual(all[State.DONE], some[State.DONE]);
  assert.equal(all[UNLOADED], pixel(theme.unloaded));
});

test("colors of style sheets are read", () => {
  assert.deepEqual(rgbOf(" #fff"), [255, 255, 255]);
  assert.deepEqual(rgbOf("#102030"), [16, 32, 48]);
  assert.deepEqual(rgbOf("rgb(1, 2, 3)"), [1, 2, 3]);
  assert.deepEqual(rgbOf("rgb(1 2 3 / 0.5)"), [1, 2, 3]);
  assert.deepEqual(rgbOf("url(x)"), [128, 128, 128]);
});
