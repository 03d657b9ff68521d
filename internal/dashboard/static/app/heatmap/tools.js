// The tools above the map: layer, drag mode, zoom, and finding an item by key.
import { html, useState } from "../html.js";
import { Button, toast } from "../ui.js";
import { api } from "../api.js";
import { num } from "../format.js";
import { itemApi } from "../parts/itempath.js";
import { HELP } from "./keys.js";
import { LAYERS } from "./palette.js";

export function Tools({ run, layer, onLayer, mode, onMode, seen, surface, grouped }) {
  const zoom = (factor) => {
    const s = surface.current;
    if (s.view.zoomAt(factor, s.view.width / 2, s.view.height / 2)) s.moved();
  };
  const fit = () => {
    surface.current.view.fit();
    surface.current.moved();
  };
  return html`<div class="map-tools" role="toolbar" aria-label="Heat-map">
    <div class="segmented" role="radiogroup" aria-label="Color by">${Object.values(LAYERS).map((l) => html`
      <button type="button" role="radio" key=${l.name} aria-checked=${String(l.name === layer.name)} title=${l.why}
        tabindex=${l.name === layer.name ? 0 : -1} onKeyDown=${(e) => radioKeys(e, onLayer, layer.name)}
        data-test=${"layer-" + l.name} onClick=${() => onLayer(l.name)}>${l.text}</button>`)}
    </div>
    <${Find} run=${run} surface=${surface} />
    <span class="map-tools-gap"></span>
    <div class="segmented modes" role="group" aria-label="A drag">
      <button type="button" aria-pressed=${String(mode === "select" && !grouped)} disabled=${grouped}
          onClick=${() => onMode("select")} data-test="mode-select"
        title=${grouped ? "In bands no range can be selected: its items are no range of the run" : "A drag selects a range of items"}>Select</button>
      <button type="button" aria-pressed=${String(mode === "move" || grouped)} onClick=${() => onMode("move")}
          data-test="mode-move"
        title="A drag moves the map; also with the space bar or the middle button held">Move</button>
    </div>
    <div class="segmented zooms" role="group" aria-label="Zoom">
      <button type="button" onClick=${() => zoom(1 / 1.8)} aria-label="Zoom out" title="Zoom out (−)"
          data-test="zoom-out"
        aria-disabled=${seen.zoomed ? undefined : "true"}>−</button>
      <button type="button" class="zoom-now" onClick=${fit} aria-label=${`${zoomText(seen)}: show everything`}
          title="Show everything (0)" data-test="zoom-fit">${zoomText(seen)}</button>
      <button type="button" onClick=${() => zoom(1.8)} aria-label="Zoom in" title="Zoom in (+)"
          data-test="zoom-in">+</button>
    </div>
    <${Help} />
  </div>`;
}

function zoomText({ zoomed, zoom }) {
  if (!zoomed) return "All";
  return zoom >= 10 ? `${num(Math.round(zoom))}×` : `${zoom.toFixed(1)}×`;
}

function radioKeys(e, choose, current) {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
  if (!by) return;
  e.preventDefault();
  const names = Object.keys(LAYERS);
  const next = names[(names.indexOf(current) + by + names.length) % names.length];
  choose(next);
  e.currentTarget.parentElement.children[names.indexOf(next)].focus();
}

function Find({ run, surface }) {
  const [text, setText] = useState("");
  const find = async (e) => {
    e.preventDefault();
    const wanted = text.trim();
    if (!wanted) return;
    const ordinal = /^#[\d,]+$/.test(wanted) ? Number(wanted.slice(1).replaceAll(",", "")) : await ordinalOf(run, wanted);
    if (ordinal < 0) return;
    if (ordinal >= run.items) {
      toast(`The run has ${num(run.items)} items, starting with #0.`, { tone: "warn" });
      return;
    }
    surface.current.goTo(ordinal);
    surface.current.canvases.over.focus({ preventScroll: true });
    surface.current.focus(true);
  };
  return html`<form class="map-find" role="search" onSubmit=${find}>
    <input type="search" value=${text} onInput=${(e) => setText(e.currentTarget.value)}
        placeholder="Find a key or #number"
      aria-label="Find an item by its key, or by # and its number" autocomplete="off" spellcheck="false" data-search
      data-test="find" />
  </form>`;
}

async function ordinalOf(run, key) {
  try {
    const { items } = await api.get(itemApi(run.id, key));
    return items[0]?.ordinal ?? -1;
  } catch (err) {
    toast(err.status === 404 ? `There is no item with the key ${key}.` : err, { tone: err.status === 404 ? "warn" : "bad" });
    return -1;
  }
}

function Help() {
  const [open, setOpen] = useState(false);
  return html`<div class="map-help">
    <${Button} kind="ghost" small icon="help" label="How to use the map" title="How to use the map"
        aria-expanded=${String(open)}
      onClick=${() => setOpen(!open)} test="map-help" />
    ${open && html`<div class="map-help-box" role="note" onKeyDown=${(e) => e.key === "Escape" && setOpen(false)}>
      <p>Every item is a cell, in the order of the items: down a column, then to the right, in lines from top to bottom.
        From afar, where many share a pixel, it has the color of most of them, toned by the worst as far as its share goes.</p>
      <dl>${[["drag", "select a range"], ["Space + drag", "move the map; also with the middle button, or two fingers"],
        ["wheel", "zoom around the pointer"], ...HELP].map(([key, what]) => html`<div
            key=${key}><dt>${key}</dt><dd>${what}</dd></div>`)}</dl>
    </div>`}
  </div>`;
}
