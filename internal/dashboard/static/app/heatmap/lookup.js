// The names of items: a pointer that rests on one asks for its key, state and error. What was asked once is kept for a
// while; items beside it come along, for the pointer goes there next.
import { api, query, segment } from "../api.js";

const REST = 70;      // ms a pointer has to rest
const KEEP = 4000;    // items
const FRESH = 5000;   // ms until an item is asked for again
const ALONG = 16;     // items that come in one answer

export class Lookup {
  constructor(run, step, get = api.get) {
    Object.assign(this, { run, step, get });
    this.known = new Map();
    this.timer = 0;
    this.abort = null;
    this.wanted = -1;
  }

  /** want calls back with an item, at once if it is known, or when it has come: (item, error). */
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

  /** forget drops what is known: another step is looked at, or much has changed. */
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
