// Finds the previous or next failed item in the plane of states, a byte per item, without reading items.

import { api, query, segment } from "../api.js";

const blockItems = 8192; // items per block of a plane
const blocksAtOnce = 128; // maximum per request
const failed = 6; // the value of the state in a plane

/** nextFailed finds the failed item after an ordinal or, if by is -1, before it. It returns {key, ordinal}, or null. */
export async function nextFailed(run, ordinal, by, items) {
  const found = await search(run, ordinal, by, items);
  if (found === null) return null;
  const page = await api.get(`/runs/${segment(run)}/items${query({ from: found, to: found, limit: 1 })}`);
  return page.items[0] ?? null;
}

// The item's own block is read first and alone, because a neighbor is usually near.
async function search(run, ordinal, by, items = Infinity) {
  const last = Math.ceil(items / blockItems) - 1;
  let block = Math.floor(ordinal / blockItems);
  let from = ordinal + by;
  for (let blocks = 1; block >= 0 && block <= last; blocks = blocksAtOnce) {
    const first = by > 0 ? block : Math.max(0, block - blocks + 1);
    const count = by > 0 ? blocks : block - first + 1;
    const plane = await states(run, first, count);
    const at = scan(plane, from - first * blockItems, by);
    if (at >= 0) return first * blockItems + at;
    if (plane.length < count * blockItems && by > 0) return null;
    block = by > 0 ? first + count : first - 1;
    from = by > 0 ? block * blockItems : first * blockItems - 1;
  }
  return null;
}

async function states(run, from, blocks) {
  const answer = await api.raw(`/runs/${segment(run)}/planes${query({ layer: "state", from, blocks })}`);
  return new Uint8Array(await answer.arrayBuffer());
}

const scan = (plane, from, by) =>
  by > 0 ? plane.indexOf(failed, Math.max(from, 0)) : from < 0 ? -1 : plane.lastIndexOf(failed, from);
