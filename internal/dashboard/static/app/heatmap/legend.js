// The legend: the meaning and count of colors. A press highlights some. A table has the same for screen readers.
import { html } from "../html.js";
import { Icon } from "../ui.js";
import { num, percent } from "../format.js";
import { STATES, bandColors, css } from "./palette.js";

export function entries(layer, counts) {
  const sum = (from, to) => {
    let n = 0;
    for (let v = from; v <= to; v++) n += counts?.[v] ?? 0;
    return n;
  };
  if (layer.name === "state") {
    return STATES.map((s) => ({ id: s.value, text: s.text, why: s.why, from: s.value, to: s.value, items: sum(s.value, s.value) }));
  }
  return layer.bands.map((b, i) => ({ id: i, text: b.text, from: b.from, to: b.to, items: sum(b.from, b.to) }));
}

// States without items are hidden, except the four that every run has.
const always = new Set([2, 4, 5, 6]);

export function Legend({ layer, seen, only, onOnly, surface }) {
  const all = entries(layer, seen.counts);
  const listed = all.filter((e) => e.items > 0 || only.has(e.id) || (layer.name === "state" && always.has(e.id)));
  const colors = layer.name !== "state" && surface?.theme
    ? bandColors(layer, surface.theme.dark, surface.theme.none) : null;
  const press = (id, e) => {
    const next = new Set(e.shiftKey || e.ctrlKey || e.metaKey ? only : []);
    if (only.has(id)) next.delete(id);
    else next.add(id);
    if (only.size > 1 && !(e.shiftKey || e.ctrlKey || e.metaKey)) next.add(id);
    onOnly(next);
  };
  return html`<div class="legend" role="group" aria-label="Legend: press to highlight">
    ${listed.map((e) => html`<button type="button" key=${e.id} class=${"legend-item" + (e.items === 0 ? " none" : "")}
        aria-pressed=${String(only.has(e.id))}
            title=${(e.why ? e.why + " " : "") + "Press to highlight; with Shift several."}
        data-test=${"legend-" + e.id} onClick=${(event) => press(e.id, event)}>
      <${Swatch} entry=${e} color=${colors?.[e.id]} /><span class="legend-text">${e.text}</span>
      <span class="legend-count">${num(e.items)}</span></button>`)}
    ${only.size > 0 && html`<button type="button" class="legend-item clear" onClick=${() => onOnly(new Set())}
      data-test="legend-clear"><${Icon} name="cross" size=${12}/> Show all</button>`}
  </div>`;
}

function Swatch({ entry, color }) {
  if (!color) return html`<i class=${"swatch state-" + entry.id}></i>`;
  return html`<i class="swatch" style=${{ background: css(color) }}></i>`;
}

export function CountTable({ layer, seen, onShow }) {
  const all = entries(layer, seen.counts).filter((e) => e.items > 0);
  return html`<details class="map-table" data-test="map-table"><summary>The map as a table</summary>
    <table><caption class="sr">Items by ${layer.text.toLowerCase()}</caption>
      <thead><tr><th scope="col">${layer.text}</th><th scope="col" class="right">Items</th><th scope="col"
          class="right">Share</th><th scope="col"><span class="sr">Go there</span></th></tr></thead>
      <tbody>${all.map((e) => html`<tr key=${e.id}><th scope="row">${e.text}</th>
        <td class="right">${num(e.items)}</td><td class="right">${percent(e.items / Math.max(1, seen.items))}</td>
        <td class="right"><button type="button" class="btn small ghost"
            onClick=${() => onShow(valuesOf(e))}>First one<span
            class="sr"> ${e.text}</span></button></td></tr>`)}</tbody>
    </table></details>`;
}

const valuesOf = ({ from, to }) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
