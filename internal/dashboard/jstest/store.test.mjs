import assert from "node:assert/strict";
import test from "node:test";
import { Plane, State, UNLOADED } from "../static/app/heatmap/store.js";

test("a plane counts what it has", () => {
  const plane = new Plane(10);
  assert.equal(plane.loaded, 0);
  plane.load(2, new Uint8Array([5, 5, 6]));
  assert.equal(plane.loaded, 3);
  assert.equal(plane.counts[State.DONE], 2);
  assert.equal(plane.counts[State.FAILED], 1);
  plane.set(0, 10, State.READY);
  assert.equal(plane.counts[State.READY], 10);
  assert.equal(plane.counts[State.DONE], 0);
});

test("what is past the end is left out", () => {
  const plane = new Plane(4);
  plane.load(2, new Uint8Array([5, 5, 5, 5]));
  plane.set(3, 100, State.FAILED);
  plane.set(-5, 6, State.HELD);
  plane.set(4, 1, State.HELD);
  assert.deepEqual([...plane.data], [State.HELD, UNLOADED, 5, 6]);
});

test("the greatest value of the server is not taken for one that has not come", () => {
  const plane = new Plane(2);
  plane.load(0, new Uint8Array([255, 254]));
  assert.deepEqual([...plane.data], [254, 254]);
  assert.equal(plane.loaded, 2);
});

test("changes come in order, and the last one wins", () => {
  const plane = new Plane(8);
  const changed = [];
  plane.onChange = (from, to) => changed.push([from, to]);
  plane.apply([0, 8, State.READY, 2, 3, State.IN_FLIGHT, 3, 1, State.FAILED]);
  assert.deepEqual([...plane.data], [2, 2, 4, 6, 4, 2, 2, 2]);
  assert.deepEqual(changed, [[0, 7], [2, 4], [3, 3]]);
});

test("changes can be clipped to a part that has come late", () => {
  const plane = new Plane(8);
  plane.load(0, new Uint8Array(8).fill(State.READY));
  plane.apply([0, 8, State.DONE], 2, 3);
  assert.deepEqual([...plane.data], [2, 2, 5, 5, 2, 2, 2, 2]);
});

test("a plane grows with its run", () => {
  const plane = new Plane(2);
  plane.load(0, new Uint8Array([5, 6]));
  plane.grow(4);
  assert.deepEqual([...plane.data], [5, 6, UNLOADED, UNLOADED]);
  assert.equal(plane.counts[UNLOADED], 2);
});

test("the next item of a state is found, around the end", () => {
  const plane = new Plane(6);
  plane.load(0, new Uint8Array([5, 6, 5, 5, 6, 5]));
  assert.equal(plane.find([State.FAILED], 1), 4);
  assert.equal(plane.find([State.FAILED], 4), 1);
  assert.equal(plane.find([State.FAILED], 1, true), 4);
  assert.equal(plane.find([State.HELD], 0), -1);
});

test("a range is counted by value", () => {
  const plane = new Plane(6);
  plane.load(0, new Uint8Array([5, 6, 5, 5, 6, 5]));
  const counts = plane.countIn(1, 4);
  assert.equal(counts[State.DONE], 2);
  assert.equal(counts[State.FAILED], 2);
});
