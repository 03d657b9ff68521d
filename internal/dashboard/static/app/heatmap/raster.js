// Draws the visible part of a map, from the level of summaries whose cells are at least a pixel. The cost depends on
// the canvas's pixels only, not on the number of items.

import { blendAt } from "./palette.js";
import { UNLOADED } from "./store.js";

/** GRID_FROM is the minimum side of a cell, in pixels, for gaps between cells. */
export const GRID_FROM = 5;

/** levelFor is the lowest level whose cells have a side of at least least pixels, so that each is drawn. */
export function levelFor(scale, levels, least = 1) {
  let level = 0;
  for (let side = scale; side < least * 0.999 && level < levels; level++) side *= 2;
  return level;
}

/**
 * draw fills pixels (a Uint32Array of width × height) by colors (a Uint32Array of 256, for values); ground is for
 * gaps and missing items. least is the minimum side of a cell, to make single items visible. blend has the colors
 * of shared pixels (see blends); without it the worst value shows.
 */
export function draw(pixels, width, height, view, pyramid, colors, ground, { least = 1, blend = null } = {}) {
  const { layout, plane } = pyramid;
  const level = levelFor(view.scale, pyramid.levels.length, least);
  const side = view.scale * 2 ** level;
  const gap = level === 0 && side >= GRID_FROM ? Math.max(1, Math.round(side / 16)) : 0;
  const cols = level === 0 ? layout.cols : pyramid.levels[level - 1].w;
  const rows = level === 0 ? layout.rows : pyramid.levels[level - 1].h;
  const stride = level === 0 ? layout.band : 1; // between neighbors in a row of the source
  const xs = columns(width, view.ox, side, gap, cols, stride);
  const source = level === 0 ? plane : pyramid.levels[level - 1];
  const shared = level > 0 && blend;
  let above = -2; // the row of cells of the previous line of pixels
  for (let py = 0; py < height; py++) {
    const line = py * width;
    const y = cellAt(py, view.oy, side, gap, rows);
    if (y < 0) pixels.fill(ground, line, line + width);
    else if (y === above) pixels.copyWithin(line, line - width, line);
    else {
      const base = level === 0 ? layout.first(0, y) : y * cols;
      const inside = inhabited(layout, level, y) * stride;
      if (shared) drawShared(pixels, line, width, xs, source, base, inside, colors, blend, ground);
      else drawLine(pixels, line, width, xs, source.data, base, inside, colors, ground);
    }
    above = y;
  }
}

function drawLine(pixels, line, width, xs, data, base, inside, colors, ground) {
  for (let px = 0; px < width; px++) {
    const x = xs[px];
    pixels[line + px] = x >= 0 && x < inside ? colors[data[base + x]] : ground;
  }
}

function drawShared(pixels, line, width, xs, { data, most, share }, base, inside, colors, blend, ground) {
  for (let px = 0; px < width; px++) {
    const x = xs[px];
    if (x < 0 || x >= inside) {
      pixels[line + px] = ground;
      continue;
    }
    const at = base + x;
    const known = data[at] !== UNLOADED && most[at] !== UNLOADED;
    pixels[line + px] = known ? blend[blendAt(most[at], data[at], share[at])] : colors[data[at]];
  }
}

// inhabited is the number of cells with items in a row of a level; they are its first ones.
function inhabited(layout, level, y) {
  const size = 2 ** level;
  const left = layout.items - layout.first(0, Math.min(y * size, layout.rows - 1));
  if (left <= 0) return 0;
  return Math.min(Math.ceil(layout.cols / size), Math.ceil(Math.ceil(left / layout.band) / size));
}

function columns(width, offset, side, gap, cols, stride) {
  const xs = new Int32Array(width);
  for (let px = 0; px < width; px++) {
    const x = cellAt(px, offset, side, gap, cols);
    xs[px] = x < 0 ? -1 : x * stride;
  }
  return xs;
}

// cellAt is the cell under the center of a pixel; -1 outside, and in gaps.
function cellAt(pixel, offset, side, gap, cells) {
  const at = (pixel + 0.5 - offset) / side;
  const cell = Math.floor(at);
  if (cell < 0 || cell >= cells) return -1;
  if (gap > 0 && (at - cell) * side >= side - gap) return -1;
  return cell;
}
