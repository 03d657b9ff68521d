// A paged list, newest first: the first page is polled, the rest loads on demand.

import { html, useEffect, useRef, useState } from "../html.js";
import { Button, useLoad } from "../ui.js";
import { api } from "../api.js";

/**
 * usePages loads a list. pathOf(cursor) is the path of a page, rowsOf(document) its rows, idOf(row) their sort key,
 * descending. It returns {rows, error, loading, reload, more}; rows is undefined before the first page; more loads
 * the next page, and is null after the last one. deps change when the list becomes another one.
 */
export function usePages(pathOf, rowsOf, idOf, deps, { every = 0 } = {}) {
  const first = useLoad(pathOf(""), deps, { every });
  const held = useRef({ key: "", from: null, rows: new Map(), next: undefined });
  const [, redraw] = useState(0);
  const key = JSON.stringify([pathOf(""), ...deps]);
  const h = held.current;
  // Rows, or an answer still in flight, of a previous list are discarded.
  if (h.key !== key) Object.assign(h, { key, from: first.data, rows: new Map(), next: undefined, stale: true });
  if (first.data && first.data !== h.from) take(h, first.data, rowsOf, idOf);
  useEffect(() => () => { held.current.key = ""; }, []);
  const more = async () => {
    const of = h.key;
    const page = await api.get(pathOf(h.next));
    if (held.current.key !== of) return;
    for (const row of rowsOf(page)) h.rows.set(idOf(row), row);
    h.next = page.next;
    redraw((n) => n + 1);
  };
  const rows = h.stale ? undefined : [...h.rows.values()].sort((a, b) => (idOf(a) < idOf(b) ? 1 : -1));
  return { rows, error: first.error, loading: first.loading, reload: first.reload, more: h.next ? more : null };
}

// take merges a new first page: it replaces all rows that are not older than its last.
function take(h, data, rowsOf, idOf) {
  const rows = rowsOf(data);
  const last = rows.length > 0 ? (data.next ? idOf(rows[rows.length - 1]) : null) : data.next ?? null;
  for (const id of h.rows.keys()) {
    if (last === null || id >= last) h.rows.delete(id);
  }
  const only = h.rows.size === 0;
  for (const row of rows) h.rows.set(idOf(row), row);
  if (only && !(rows.length === 0 && h.next < data.next)) h.next = data.next;
  h.from = data;
  h.stale = false;
}

export function More({ pages }) {
  if (!pages.more) return null;
  return html`<div class="more"><${Button} onClick=${pages.more} test="more">Show more<//></div>`;
}
