// Summaries of a plane for zoomed-out views: a cell of level 1 covers 2 × 2 cells of the map, one of level 2 4 × 4,
// and so on. It has the highest-ranking value among its items, so that one failed item in thousands still shows, that
// value's share, and the commonest value. Only changed parts are recomputed.
import { UNLOADED } from "./store.js";

export class Pyramid {
  /** rank returns how much a value matters; the highest wins. */
  constructor(layout, plane, rank) {
    this.layout = layout;
    this.plane = plane;
    this.rank = rank;
    this.levels = [];
    let w = layout.cols;
    let h = layout.rows;
    while (w > 1 || h > 1) {
      w = (w + 1) >> 1;
      h = (h + 1) >> 1;
      // data: highest by rank; share: of items with that value, 255 is all; most: the commonest
      this.levels.push({
        w, h, data: new Uint8Array(w * h).fill(UNLOADED), share: new Uint8Array(w * h), most: new Uint8Array(w * h).fill(UNLOADED),
      });
    }
    this.low = new Int32Array(layout.bands);
    this.high = new Int32Array(layout.bands);
    this.#clean();
    if (plane.loaded > 0) this.touch(0, layout.items - 1); // otherwise everything is initial
  }

  /** touch marks the ordinals from..to, inclusive, as changed. */
  touch(from, to) {
    const { layout, low, high } = this;
    const last = Math.min(layout.bands - 1, Math.floor(to / layout.perBand));
    const first = Math.floor(from / layout.perBand);
    for (let b = first; b <= last; b++) {
      const x0 = b === first ? layout.x(from) : 0;
      const x1 = b === last ? layout.x(to) : layout.cols - 1;
      if (x0 < low[b]) low[b] = x0;
      if (x1 > high[b]) high[b] = x1;
    }
    this.dirty = true;
  }

  flush() {
    if (!this.dirty) return;
    const { layout, low, high } = this;
    let spans = new Map(); // row of a level: [x0, x1]
    for (let b = 0; b < layout.bands; b++) {
      if (high[b] < low[b]) continue;
      for (let y = (b * layout.band) >> 1; y <= Math.min(layout.rows - 1, (b + 1) * layout.band - 1) >> 1; y++) {
        widen(spans, y, low[b] >> 1, high[b] >> 1);
      }
    }
    this.levels.forEach((level, i) => {
      const next = new Map();
      for (const [y, [x0, x1]] of spans) {
        if (i === 0) this.#sumItems(level, y, x0, x1);
        else this.#sumLevel(this.levels[i - 1], level, y, x0, x1);
        widen(next, y >> 1, x0 >> 1, x1 >> 1);
      }
      spans = next;
    });
    this.#clean();
  }

  #clean() {
    this.low.fill(0x7fffffff);
    this.high.fill(-1);
    this.dirty = false;
  }

  #sumItems(level, y, x0, x1) {
    const { layout, rank } = this;
    const { data, items } = this.plane;
    const { cols, rows, band } = layout;
    const top = layout.first(0, 2 * y);
    const under = 2 * y + 1 < rows ? layout.first(0, 2 * y + 1) : items;
    const cells = [0, 0, 0, 0];
    for (let x = x0; x <= x1; x++) {
      let n = 0;
      const end = Math.min(2 * x + 2, cols);
      for (let cx = 2 * x; cx < end; cx++) {
        const a = top + cx * band;
        const b = under + cx * band;
        if (a < items) cells[n++] = data[a];
        if (b < items) cells[n++] = data[b];
      }
      const at = y * level.w + x;
      let best = UNLOADED;
      for (let i = 0; i < n; i++) if (rank[cells[i]] > rank[best]) best = cells[i];
      let has = 0;
      for (let i = 0; i < n; i++) if (cells[i] === best) has++;
      level.data[at] = best;
      level.share[at] = n > 0 ? Math.round((255 * has) / n) : 0;
      level.most[at] = commonest(cells, n);
    }
  }

  #sumLevel(below, level, y, x0, x1) {
    const { rank } = this;
    const { data, share, most, w, h } = below;
    const places = [0, 0, 0, 0];
    const mosts = [0, 0, 0, 0];
    for (let x = x0; x <= x1; x++) {
      let n = 0;
      for (let cy = 2 * y; cy <= 2 * y + 1 && cy < h; cy++) {
        for (let cx = 2 * x; cx <= 2 * x + 1 && cx < w; cx++) {
          const place = cy * w + cx;
          if (data[place] !== UNLOADED || n === 0) places[n++] = place;
        }
      }
      let best = data[places[0]];
      for (let i = 1; i < n; i++) if (rank[data[places[i]]] > rank[best]) best = data[places[i]];
      let sum = 0;
      for (let i = 0; i < n; i++) {
        const p = places[i];
        mosts[i] = most[p];
        if (data[p] === best) sum += share[p];
        else if (most[p] === best) sum += 255 - share[p];
      }
      const at = y * level.w + x;
      level.data[at] = best;
      level.share[at] = Math.round(sum / n);
      level.most[at] = commonest(mosts, n);
    }
  }
}

// commonest is the commonest of the first n values; ties go to the first.
function commonest(values, n) {
  let best = n > 0 ? values[0] : UNLOADED;
  let most = 0;
  for (let i = 0; i < n && most * 2 <= n; i++) {
    let has = 0;
    for (let j = 0; j < n; j++) if (values[j] === values[i]) has++;
    if (has > most) [best, most] = [values[i], has];
  }
  return best;
}

function widen(spans, y, x0, x1) {
  const span = spans.get(y);
  if (!span) spans.set(y, [x0, x1]);
  else {
    span[0] = Math.min(span[0], x0);
    span[1] = Math.max(span[1], x1);
  }
}
