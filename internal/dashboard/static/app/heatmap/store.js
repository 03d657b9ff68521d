// A plane of a run: a byte per item, by ordinal, with counts per value.

/** UNLOADED is the value of items not loaded yet. The server's values are at most 254. */
export const UNLOADED = 255;

export const State = Object.freeze({
  WAITING: 0, HELD: 1, READY: 2, SCHEDULED: 3, IN_FLIGHT: 4, DONE: 5, FAILED: 6, SKIPPED: 7, STALE: 8,
});

/** BLOCK is the number of items in a block of the server; planes are fetched in blocks. */
export const BLOCK = 8192;

export class Plane {
  /** onChange(from, to), inclusive, is called for ordinals that may have changed. */
  constructor(items, onChange = () => {}) {
    this.items = items;
    this.data = new Uint8Array(items).fill(UNLOADED);
    this.counts = new Float64Array(256);
    this.counts[UNLOADED] = items;
    this.version = 0;
    this.onChange = onChange;
  }

  grow(items) {
    if (items <= this.items) return;
    const data = new Uint8Array(items).fill(UNLOADED);
    data.set(this.data);
    this.counts[UNLOADED] += items - this.items;
    this.data = data;
    this.items = items;
    this.version++;
  }

  /** load stores the server's bytes at an ordinal, ignoring those beyond the end. */
  load(from, bytes) {
    const n = Math.max(0, Math.min(bytes.length, this.items - from));
    const { data, counts } = this;
    for (let i = 0; i < n; i++) {
      const value = bytes[i] === UNLOADED ? UNLOADED - 1 : bytes[i];
      counts[data[from + i]]--;
      counts[value]++;
      data[from + i] = value;
    }
    if (n > 0) this.#changed(from, from + n - 1);
  }

  set(from, count, value) {
    const begin = Math.max(0, from);
    const end = Math.min(this.items, from + count);
    const { data, counts } = this;
    for (let i = begin; i < end; i++) counts[data[i]]--;
    if (end <= begin) return;
    data.fill(value, begin, end);
    counts[value] += end - begin;
    this.#changed(begin, end - 1);
  }

  /** apply applies the server's flat list of changes (ordinal, count, value), clipped to from..to. */
  apply(changes, from = 0, to = this.items - 1) {
    for (let i = 0; i + 2 < changes.length; i += 3) {
      const begin = Math.max(from, changes[i]);
      const end = Math.min(to, changes[i] + changes[i + 1] - 1);
      if (end >= begin) this.set(begin, end - begin + 1, changes[i + 2]);
    }
  }

  get loaded() {
    return this.items - this.counts[UNLOADED];
  }

  /** countIn counts the values of the ordinals from..to, inclusive. */
  countIn(from, to) {
    const counts = new Float64Array(256);
    for (let i = Math.max(0, from); i <= Math.min(to, this.items - 1); i++) counts[this.data[i]]++;
    return counts;
  }

  /** find returns the next ordinal after (or, backwards, before) one with one of values, wrapping around; or -1. */
  find(values, ordinal, backwards = false) {
    const wanted = new Uint8Array(256);
    for (const v of values) wanted[v] = 1;
    const n = this.items;
    for (let i = 1; i <= n; i++) {
      const at = backwards ? (ordinal - i + n) % n : (ordinal + i) % n;
      if (wanted[this.data[at]]) return at;
    }
    return -1;
  }

  #changed(from, to) {
    this.version++;
    this.onChange(from, to);
  }
}
