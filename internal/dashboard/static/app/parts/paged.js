// A list that comes in pages, newest first: its beginning is looked at again and again, the rest on demand.

import { html, useEffect, useRef, useState } from "../html.js";
import { Button, useLoad } from "../ui.js";
import { api } from "../api.js";

/**
 * usePages loads a list. pathOf(cursor) is the path of a page, rowsOf(document) its rows, idOf(row) what they are
 * ordered by, falling. It returns {rows, error, loading, reload, more}; rows is undefined before the first page, more
 * loads the next one, and is null when there is none. deps say when the list is another one.
 */
export function usePages(pathOf, rowsOf, idOf, deps, { every = 0 } = {}) {
  const first = useLoad(pathOf(""), deps, { every });
  const held = useRef({ key: "", from: null, rows: new Map(), next: undefined });
  const [, redraw] = useState(0);
  const key = JSON.stringify([pathOf(""), ...deps]);
  const h = held.current;
  // What a former list had, or its answer that is still on its way out, is not this one's.
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

// take puts a new first page in: it is the truth about all that is not older than its last row.
function take(h, data, rowsOf, idOf) {
  const rows = rowsOf(data);
  const last = data.next && rows.length > 0 ? idOf(rows[rows.length - 1]) : null;
  for (const id of h.rows.keys()) {
    if (last === null || id >= last) h.rows.delete(id);
  }
  const only = h.rows.size === 0;
  for (const row of rows) h.rows.set(idOf(row), row);
  if (only) h.next = data.next;
  h.from = data;
  h.stale = false;
}

/** More is the button at the end of such a list. */
export function More({ pages }) {
  if (!pages.more) return null;
  return html`<div class="more"><${Button} onClick=${pages.more} test="more">Show more<//></div>`;
}
