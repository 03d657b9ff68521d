import { html, rooted } from "../html.js";
import { go, within } from "../router.js";

// Table of rows. columns: [{key, title, align: "right", render(row), class, hide: "narrow" (hidden below 900 px),
// label (for phones, where a row is a card; "" none), sort (its name, for sort and onSort)}]. rowKey(row) identifies. href(row) makes a row a link: its
// first cell should hold the link; the rest of the row follows it. j and k move between rows, Enter opens.
export function Table({ columns, rows, rowKey, href, onOpen, caption, empty, test, rowClass, sort, onSort, stack = true }) {
  if (rows.length === 0 && empty) return empty;
  const openRow = (row, e) => {
    if (e.target.closest("a,button,input,select,label,summary") || getSelection()?.toString()) return;
    if (href) {
      if (e.metaKey || e.ctrlKey) window.open(rooted(within(href(row))), "_blank", "noopener");
      else go(href(row));
    } else onOpen(row);
  };
  const opens = href || onOpen;
  const key = (row, e) => {
    if (e.key !== "Enter" || e.target !== e.currentTarget) return;
    e.preventDefault();
    if (href) go(href(row));
    else onOpen(row);
  };
  return html`<div class="table-box" data-test=${test}><table class=${stack ? "stack" : ""}>
    ${caption && html`<caption class="sr">${caption}</caption>`}
    <thead><tr>${columns.map((c) => html`<th key=${c.key} scope="col" class=${cell(c)}
      aria-sort=${c.sort && c.sort === sort ? (c.sort === "name" ? "ascending" : "descending") : undefined}>${c.sort && onSort
      ? html`<button type="button" class="sort" data-test=${"sort-" + c.sort} onClick=${() => onSort(c.sort)}>${c.title}</button>`
      : c.title || (c.srTitle && html`<span class="sr">${c.srTitle}</span>`)}</th>`)}</tr></thead>
    <tbody data-rows>${rows.map((row) => html`<tr key=${rowKey(row)} data-row=${rowKey(row)} tabindex=${opens ? -1 : undefined}
        class=${(opens ? "opens " : "") + (rowClass?.(row) || "")} onClick=${opens ? (e) => openRow(row, e) : undefined}
        onKeyDown=${opens ? (e) => key(row, e) : undefined}>
      ${columns.map((c) => html`<td key=${c.key} class=${cell(c)} data-label=${c.label ?? c.title}>${
        c.render ? c.render(row) : row[c.key]}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

const cell = (c) => [c.align === "right" ? "right" : "", c.hide || "", c.class || ""].join(" ").trim();
