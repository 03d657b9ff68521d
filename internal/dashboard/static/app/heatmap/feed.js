// Loads planes in pieces and keeps them current by streamed changes. Changes that arrive while pieces are loading are
// kept and applied to each piece: they carry absolute states, so applying them again in order gives the true state.
import { api, query, segment } from "../api.js";
import { BLOCK, Plane } from "./store.js";

const PIECE = 128;      // blocks per request, the server's maximum
const AT_ONCE = 3;      // concurrent requests
const AGING = 30_000;   // ms between reloads of ages, which change constantly
const REFRESH = 4000;   // ms between reloads of layers other than state, which have no stream

export class Feed {
  /** on: {plane(plane), loaded(), error(err)}. raw(path, {signal}) answers a request; for tests. */
  constructor(run, { step = "", layer = "state" }, on, raw = (path, options) => api.raw(path, options)) {
    Object.assign(this, { run, step, layer, on, raw });
    this.plane = null;
    this.journal = null;
    this.dirty = new Set(); // changed blocks of another layer
    this.abort = new AbortController();
    this.timer = 0;
    this.loading = 0;
  }

  /** load fetches everything, or starting with a block. The stream should be open. */
  async load(from = 0) {
    const mine = ++this.loading;
    clearTimeout(this.aging);
    this.abort.abort();
    this.abort = new AbortController();
    this.journal ??= [];
    this.begun = performance.now();
    try {
      const { items, blocks } = await this.#piece(from, PIECE);
      const starts = [];
      for (let b = from + PIECE; b < blocks; b += PIECE) starts.push(b);
      const worker = async () => {
        while (starts.length > 0) await this.#piece(starts.shift(), PIECE);
      };
      await Promise.all(Array.from({ length: AT_ONCE }, worker));
      if (mine !== this.loading) return;
      this.journal = null;
      this.took = performance.now() - this.begun;
      if (items > 0) this.on.loaded();
      if (this.layer === "age") this.aging = setTimeout(() => this.load(), AGING);
    } catch (err) {
      if (err.name === "AbortError" || mine !== this.loading) return;
      this.on.error(err);
    }
  }

  delta({ step, changes }) {
    if ((step ?? "") !== this.step) return;
    if (this.layer !== "state") {
      this.#mark(changes);
      return;
    }
    this.journal?.push(changes);
    this.plane?.apply(changes);
  }

  grown(items) {
    if (!this.plane || items <= this.plane.items) return;
    this.load(Math.floor(this.plane.items / BLOCK));
  }

  close() {
    this.loading++;
    this.abort.abort();
    clearTimeout(this.timer);
    clearTimeout(this.aging);
  }

  async #piece(from, blocks) {
    const { signal } = this.abort;
    const answer = await this.raw(`/runs/${segment(this.run)}/planes${query({
      step: this.step, layer: this.layer, from: String(from), blocks,
    })}`, { signal });
    const items = Number(answer.headers.get("Tranche-Items"));
    const count = Number(answer.headers.get("Tranche-Blocks")) || Math.ceil(items / BLOCK);
    const bytes = new Uint8Array(await answer.arrayBuffer());
    if (signal.aborted) throw new DOMException("aborted", "AbortError");
    this.#room(items);
    this.plane.load(from * BLOCK, bytes);
    const last = from * BLOCK + bytes.length - 1;
    for (const changes of this.journal ?? []) this.plane.apply(changes, from * BLOCK, last);
    return { items, blocks: count };
  }

  #room(items) {
    if (this.plane && this.plane.items >= items) return;
    if (this.plane) {
      const grown = new Plane(this.plane.items);
      grown.data = this.plane.data;
      grown.counts = this.plane.counts;
      grown.grow(items);
      this.plane = grown;
    } else this.plane = new Plane(items);
    this.on.plane(this.plane);
  }

  #mark(changes) {
    for (let i = 0; i + 2 < changes.length; i += 3) {
      const last = Math.floor((changes[i] + changes[i + 1] - 1) / BLOCK);
      for (let b = Math.floor(changes[i] / BLOCK); b <= last; b++) this.dirty.add(b);
    }
    if (!this.timer && this.plane) this.timer = setTimeout(() => this.#refresh(), REFRESH);
  }

  // Refetches what changed, in as few requests as possible.
  async #refresh() {
    const blocks = [...this.dirty].sort((a, b) => a - b);
    this.dirty.clear();
    try {
      for (const [from, count] of runs(blocks)) await this.#piece(from, count);
    } catch (err) {
      if (err.name !== "AbortError") this.on.error(err);
    }
    this.timer = 0;
    if (this.dirty.size > 0) this.#mark([]);
  }
}

/** runs joins consecutive numbers, across small gaps, to [first, count], PIECE at most. */
export function runs(numbers, gap = 4) {
  const out = [];
  for (const n of numbers) {
    const last = out.at(-1);
    if (last && n - (last[0] + last[1] - 1) <= gap && n - last[0] < PIECE) last[1] = n - last[0] + 1;
    else out.push([n, 1]);
  }
  return out;
}
