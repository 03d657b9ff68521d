// Looks up an item's key, state and error for a resting pointer. Answers are cached for a while and include adjacent
// items, where the pointer probably goes next.
import { api, query, segment } from "../api.js";

const REST = 70;      // ms that a pointer must rest
const KEEP = 4000;    // items
const FRESH = 5000;   // ms until an item is looked up again
const ALONG = 16;     // items per answer

export class Lookup {
  constructor(run, step, get = api.get) {
    Object.assign(this, { run, step, get });
    this.known = new Map();
    this.timer = 0;
    this.abort = null;
    this.wanted = -1;
  }

  /** want calls back with an item (item, error), immediately if known. */
  want(ordinal, callback) {
    this.wanted = ordinal;
    this.callback = callback;
    clearTimeout(this.timer);
    if (ordinal < 0) return;
    const known = this.known.get(ordinal);
    if (known) callback(known.item, null);
    if (known && performance.now() - known.at < FRESH) return;
    this.timer = setTimeout(() => this.#ask(ordinal), REST);
  }

  /** forget clears the cache, for another step or after many changes. */
  forget() {
    this.known.clear();
  }

  close() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.wanted = -1;
  }

  async #ask(ordinal) {
    const from = ordinal - (ordinal % ALONG);
    this.abort?.abort();
    this.abort = new AbortController();
    try {
      const { items } = await this.get(`/runs/${segment(this.run)}/items${query({
        step: this.step, from: String(from), to: from + ALONG - 1, limit: ALONG,
      })}`, { signal: this.abort.signal });
      const at = performance.now();
      for (const item of items ?? []) this.known.set(item.ordinal, { item, at });
      while (this.known.size > KEEP) this.known.delete(this.known.keys().next().value);
      const known = this.known.get(this.wanted);
      if (known) this.callback(known.item, null);
    } catch (err) {
      if (err.name !== "AbortError") this.callback(null, err);
    }
  }
}
