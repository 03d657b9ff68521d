// What changed between two sets of values by name: as people read it, with what was there struck out.

import { html } from "../html.js";
import { inert, num } from "../format.js";

/** changes lists the names whose values differ, nested ones as a.b.c: [{name, was, is}], undefined where there is none. */
export function changes(before, after) {
  const was = flat(before);
  const is = flat(after);
  const names = [...new Set([...was.keys(), ...is.keys()])].sort();
  return names
    .map((name) => ({ name, was: was.get(name), is: is.get(name) }))
    .filter((c) => c.was !== c.is);
}

// flat is the scalar values of a document by their paths. Lists are values: their places say little.
function flat(doc, path = "", into = new Map()) {
  for (const [name, value] of Object.entries(doc ?? {})) {
    const at = path ? `${path}.${name}` : name;
    if (value && typeof value === "object" && !Array.isArray(value) && at.split(".").length < 6) flat(value, at, into);
    else if (!nothing(value)) into.set(at, written(value));
  }
  return into;
}

const nothing = (v) => v === null || v === undefined || v === "" || (Array.isArray(v) && v.length === 0);

function written(value) {
  switch (typeof value) {
    case "boolean":
      return value ? "yes" : "no";
    case "number":
      return num(value);
    case "string":
      return value;
    default:
      return Array.isArray(value) && value.every((v) => typeof v !== "object") ? value.join(", ") : JSON.stringify(value);
  }
}

const short = (text, most) => inert(text.length > most ? text.slice(0, most) + "…" : text);

/** Diff shows changes, limit at the most, and a button for the others; of something new only what it is. */
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
