// The map in bands: items are grouped, and each group starts on a new line. A slot is a position on the map; the rest
// of a group's last line is empty slots.
import { Layout, fit } from "./layout.js";
import { css } from "./palette.js";
import { UNLOADED } from "./store.js";

const ROUNDS = 8; // of laying out, until it includes the slots left empty

/** order sorts ordinals by group. Returns {order, first}: first has the index where each group begins. */
export function order(groups, items, count) {
  const first = new Uint32Array(count + 1);
  const of = (i) => Math.min(groups[i] ?? count - 1, count - 1);
  for (let i = 0; i < items; i++) first[of(i) + 1]++;
  for (let g = 0; g < count; g++) first[g + 1] += first[g];
  const next = first.slice();
  const sorted = new Uint32Array(items);
  for (let i = 0; i < items; i++) sorted[next[of(i)]++] = i;
  return { order: sorted, first };
}

/** Bands is a layout by ordinals, like Layout, on top of one by slots (base), with the plane by slots (shown). */
export class Bands {
  /** groups: the group of each ordinal; names: their names. The layout fills width × height. */
  constructor(plane, groups, names, width, height) {
    const count = Math.max(1, names.length);
    Object.assign(this, { plane, names, items: plane.items, count }, order(groups, plane.items, count));
    let { layout, cell } = fit(plane.items, width, height);
    for (let round = 0; round < ROUNDS; round++) {
      const slots = this.#slots(layout);
      if (slots <= layout.items) break;
      ({ layout, cell } = fit(slots, width, height));
    }
    this.base = new Layout(this.#slots(layout), layout.cols);
    this.cell = Math.min(cell, height / this.base.rows);
    const { base } = this;
    Object.assign(this, { cols: base.cols, rows: base.rows, band: base.band });
    this.starts = new Uint32Array(count + 1);
    this.place = new Uint32Array(plane.items);
    for (let g = 0, slot = 0; g < count; g++) {
      this.starts[g] = slot;
      for (let i = this.first[g]; i < this.first[g + 1]; i++) this.place[this.order[i]] = slot++;
      slot = this.starts[g + 1] = Math.ceil(slot / base.perBand) * base.perBand;
    }
    this.shown = { items: base.items, data: new Uint8Array(base.items).fill(UNLOADED), loaded: plane.loaded };
    this.update(0, plane.items - 1);
  }

  #slots({ cols, band }) {
    let slots = 0;
    const line = cols * band;
    for (let g = 0; g < this.count; g++) slots += Math.ceil((this.first[g + 1] - this.first[g]) / line) * line;
    return Math.max(1, slots);
  }

  /** update rereads the values of the ordinals from..to and returns the changed [first, last] slot per group. */
  update(from, to) {
    const { plane, place, shown } = this;
    for (let i = from; i <= to; i++) shown.data[place[i]] = plane.data[i];
    return this.spans(from, to);
  }

  /** spans returns the first and last slot of the ordinals from..to in each group. */
  spans(from, to) {
    const out = [];
    for (let g = 0; g < this.count; g++) {
      const lo = this.#search(g, from);
      const hi = this.#search(g, to + 1) - 1;
      if (hi >= lo) out.push([this.starts[g] + lo - this.first[g], this.starts[g] + hi - this.first[g]]);
    }
    return out;
  }

  // search returns the first index of a group whose ordinal is at least the given one.
  #search(g, ordinal) {
    let lo = this.first[g];
    let hi = this.first[g + 1];
    while (lo < hi) {
      const middle = (lo + hi) >> 1;
      if (this.order[middle] < ordinal) lo = middle + 1;
      else hi = middle;
    }
    return lo;
  }

  x(ordinal) { return this.base.x(this.place[ordinal]); }

  y(ordinal) { return this.base.y(this.place[ordinal]); }

  at(x, y) {
    const slot = this.base.at(x, y);
    return slot < 0 ? -1 : this.#ordinal(slot, false);
  }

  nearest(x, y) { return this.#ordinal(this.base.nearest(x, y), true); }

  // ordinal is the item in a slot; for an empty slot -1, or with nearest the group's last item.
  #ordinal(slot, nearest) {
    let g = 0;
    while (g + 1 < this.count && this.starts[g + 1] <= slot) g++;
    const at = this.first[g] + slot - this.starts[g];
    if (at < this.first[g + 1]) return this.order[at];
    return nearest ? this.order[Math.max(0, this.first[g + 1] - 1)] : -1;
  }

  rects(from, to) { return this.spans(from, to).flatMap(([a, b]) => this.base.rects(a, b)); }

  rectOf(g) {
    const { base, starts } = this;
    const y = (starts[g] / base.perBand) * base.band;
    return { x: 0, y, w: base.cols, h: ((starts[g + 1] - starts[g]) / base.perBand) * base.band };
  }
}

/** drawBands draws a line above each band, and its name if it fits. */
export function drawBands(ctx, view, bands, theme, ratio) {
  ctx.font = `${Math.round(11 * ratio)}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  const line = 16 * ratio;
  for (let g = 0; g < bands.count; g++) {
    const r = bands.rectOf(g);
    if (r.h === 0) continue;
    const top = view.oy + r.y * view.scale;
    const bottom = top + r.h * view.scale;
    if (bottom < 0 || top > view.height) continue;
    ctx.fillStyle = css(theme.text);
    ctx.fillRect(0, top - ratio / 2, view.width, ratio);
    if (bottom - Math.max(0, top) < line) continue;
    const width = ctx.measureText(bands.names[g]).width + 10 * ratio;
    ctx.fillStyle = css(theme.panel);
    ctx.fillRect(0, Math.max(0, top), width, line);
    ctx.fillStyle = css(theme.text);
    ctx.fillText(bands.names[g], 5 * ratio, Math.max(0, top) + line / 2);
  }
}
