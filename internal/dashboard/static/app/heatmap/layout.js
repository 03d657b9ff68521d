// The position of items on the map. Ordinals run down a column of a band, then to the next column, and at the end of
// a band to the band below, like text with lines a few cells high. So a chunk, a range of ordinals, becomes a small
// rectangle that is visible from afar, unlike a line of single cells.

// Small runs have lines one cell high, like text; larger ones have higher lines.
const BANDS = [
  { upTo: 20_000, height: 1 },
  { upTo: 4_000_000, height: 8 },
  { upTo: Infinity, height: 16 },
];

/** MAX_CELL is the largest side of a cell that fit() chooses, in pixels. */
export const MAX_CELL = 36;

export function bandHeight(items) {
  return BANDS.find((b) => items <= b.upTo).height;
}

export class Layout {
  constructor(items, cols) {
    this.items = items;
    this.band = bandHeight(items);
    this.cols = Math.max(1, Math.floor(cols));
    this.perBand = this.cols * this.band; // ordinals per line
    this.bands = Math.max(1, Math.ceil(items / this.perBand));
    this.rows = this.bands * this.band;
    if (this.bands === 1) this.rows = Math.max(1, Math.min(this.band, items));
  }

  x(ordinal) {
    return Math.floor((ordinal % this.perBand) / this.band);
  }

  y(ordinal) {
    return Math.floor(ordinal / this.perBand) * this.band + (ordinal % this.band);
  }

  /** at is the ordinal of a cell, or -1 without an item. */
  at(x, y) {
    if (x < 0 || y < 0 || x >= this.cols || y >= this.rows) return -1;
    const ordinal = this.first(x, y);
    return ordinal < this.items ? ordinal : -1;
  }

  /** first is the ordinal that a cell would have with enough items. */
  first(x, y) {
    return Math.floor(y / this.band) * this.perBand + x * this.band + (y % this.band);
  }

  /** nearest is the ordinal of the cell nearest to a position, or before it. */
  nearest(x, y) {
    const cx = Math.min(this.cols - 1, Math.max(0, Math.floor(x)));
    const cy = Math.min(this.rows - 1, Math.max(0, Math.floor(y)));
    return Math.max(0, Math.min(this.items - 1, this.first(cx, cy)));
  }

  /** rects covers exactly the cells of the ordinals from..to, inclusive, with at most nine rectangles. */
  rects(from, to) {
    if (to < from) return [];
    const first = Math.floor(from / this.perBand);
    const last = Math.floor(to / this.perBand);
    if (first === last) return this.#inBand(first, from % this.perBand, to % this.perBand);
    const out = this.#inBand(first, from % this.perBand, this.perBand - 1);
    if (last - first > 1) {
      out.push({ x: 0, y: (first + 1) * this.band, w: this.cols, h: (last - first - 1) * this.band });
    }
    return out.concat(this.#inBand(last, 0, to % this.perBand));
  }

  // Within a band: a partial first column, whole columns, and a partial last one.
  #inBand(band, from, to) {
    const h = this.band;
    const top = band * h;
    let x0 = Math.floor(from / h);
    let x1 = Math.floor(to / h);
    if (x0 === x1) return [{ x: x0, y: top + (from % h), w: 1, h: to - from + 1 }];
    const out = [];
    if (from % h !== 0) out.push({ x: x0++, y: top + (from % h), w: 1, h: h - (from % h) });
    const ragged = to % h !== h - 1;
    const end = ragged ? x1 - 1 : x1;
    if (end >= x0) out.push({ x: x0, y: top, w: end - x0 + 1, h });
    if (ragged) out.push({ x: x1, y: top, w: 1, h: (to % h) + 1 });
    return out;
  }
}

/**
 * fit chooses the layout that best fills a canvas of width × height pixels, and the side of a cell. From two pixels
 * on the side is a whole number, so that all cells are alike.
 */
export function fit(items, width, height) {
  const n = Math.max(1, items);
  const ideal = Math.min(MAX_CELL, Math.sqrt((width * height) / n));
  return ideal >= 2 ? fitWhole(n, width, height, Math.floor(ideal)) : fitFine(n, width, height);
}

function fitWhole(n, width, height, largest) {
  const band = bandHeight(n);
  for (let cell = largest; cell >= 2; cell--) {
    const cols = Math.max(1, Math.floor(width / cell));
    const layout = new Layout(n, Math.min(cols, Math.ceil(n / band)));
    if (layout.rows * cell <= height) return { layout, cell };
  }
  return fitFine(n, width, height);
}

// As few lines as possible, because then cells are largest, and the canvas is filled to its last line.
function fitFine(n, width, height) {
  const band = bandHeight(n);
  for (let bands = Math.max(1, Math.floor(Math.sqrt((n * height) / width) / band) - 2); ; bands++) {
    const cell = Math.min(height / (bands * band), 2);
    const cols = Math.floor(width / cell + 1e-9);
    if (cols * bands * band >= n) return { layout: new Layout(n, cols), cell };
  }
}
