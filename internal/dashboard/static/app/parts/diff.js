// The changes between two sets of values by name, with old values struck out.

import { html } from "../html.js";
import { inert, num } from "../format.js";
import { changes } from "./changes.js";

const short = (text, most) => inert(text.length > most ? text.slice(0, most) + "…" : text);

/** Diff shows at most limit changes, and a button for the rest; new values are shown alone. */
export function Diff({ before, after, limit = Infinity, onMore }) {
  const all = changes(before, after);
  const most = limit === Infinity ? 600 : 60;
  const isNew = !before || Object.keys(before).length === 0;
  return html`<dl class="diff">
    ${all.slice(0, limit).map(
      (c) => html`<div class="diff-row" key=${c.name}>
        <dt><bdi>${short(c.name.replaceAll("_", " "), 100)}</bdi></dt>
        <dd>
          ${!isNew && html`<del><bdi>${c.was === undefined ? "none" : short(c.was, most)}</bdi></del><span class="diff-arrow" aria-label="became">→</span>`}
          <ins><bdi>${c.is === undefined ? "none" : short(c.is, most)}</bdi></ins>
        </dd>
      </div>`,
    )}
    ${all.length > limit && html`<div class="diff-row"><dt class="sr">more</dt><dd><button type="button" class="tool" onClick=${onMore}>${num(all.length - limit)} more</button></dd></div>`}
  </dl>`;
}
