// Summaries of a plane for views from afar: a cell of level 1 stands for 2 × 2 cells of the map, one of level 2 for
// 4 × 4, and so on. It has the value that ranks highest among its items, so that one failed item in thousands is
// still a pixel. Only what changed is summed up again.
import { UNLOADED } from "./store.js";

export class Pyramid {
  /** rank says for each value how much it matters; the highest wins. */
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
      this.levels.push({ w, h, data: new Uint8Array(w * h).fill(UNLOADED) });
    }
    this.low = new Int32Array(layout.bands);
    this.high = new Int32Array(layout.bands);
    this.#clean();
    if (plane.loaded > 0) this.touch(0, layout.items - 1); // else all is as it stands already
  }

  /** touch says that the ordinals from..to, both included, may have changed. */
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

  /** flush sums up again what was touched. */
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
    for (let x = x0; x <= x1; x++) {
      let best = UNLOADED;
      const end = Math.min(2 * x + 2, cols);
      for (let cx = 2 * x; cx < end; cx++) {
        const a = top + cx * band;
        const b = under + cx * band;
        if (a < items && rank[data[a]] > rank[best]) best = data[a];
        if (b < items && rank[data[b]] > rank[best]) best = data[b];
      }
      level.data[y * level.w + x] = best;
    }
  }

  #sumLevel(below, level, y, x0, x1) {
    const { rank } = this;
    const { data, w, h } = below;
    const top = 2 * y * w;
    const under = 2 * y + 1 < h ? top + w : top;
    for (let x = x0; x <= x1; x++) {
      const l = 2 * x;
      const r = l + 1 < w ? l + 1 : l;
      let best = data[top + l];
      if (rank[data[top + r]] > rank[best]) best = data[top + r];
      if (rank[data[under + l]] > rank[best]) best = data[under + l];
      if (rank[data[under + r]] > rank[best]) best = data[under + r];
      level.data[y * level.w + x] = best;
    }
  }
}

function widen(spans, y, x0, x1) {
  const span = spans.get(y);
  if (!span) spans.set(y, [x0, x1]);
  else {
    span[0] = Math.min(span[0], x0);
    span[1] = Math.max(span[1], x1);
  }
}
