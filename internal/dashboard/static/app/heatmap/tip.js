// Describes an item next to the pointer, and for screen readers.
import { html, useLayoutEffect, useRef } from "../html.js";
import { Text } from "../ui.js";
import { duration, inert, num, plural } from "../format.js";
import { bandOf, stateName, stateText, unpack } from "./palette.js";
import { UNLOADED } from "./store.js";

const words = { in_flight: "in flight", scheduled: "to be retried", skipped: "left out", stale: "being redone" };

export function stateWord(state) {
  return words[state] ?? state ?? "";
}

export function valueText(layer, value) {
  if (value === undefined || value === UNLOADED) return "not loaded";
  switch (layer.name) {
    case "state": return stateText(value).toLowerCase();
    case "attempts": return value === 0 ? "no attempt yet" : plural(value, "attempt") + (value === 254 ? " or more" : "");
    case "latency": return value === 0 ? "no outcome" : `about ${duration(unpack(value) / 1000)}`;
    default: return value === 0 ? "never changed" : `changed about ${duration(unpack(value))} ago`;
  }
}

export function Tip({ ordinal, x, y, item, error, selecting, plane, layer }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const { offsetWidth: w, offsetHeight: h, style } = box.current;
    const left = x + 16 + w > innerWidth - 8 ? Math.max(8, x - w - 12) : x + 16;
    const top = y + 18 + h > innerHeight - 8 ? Math.max(8, y - h - 12) : y + 18;
    style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  });
  if (selecting) return html`<div class="map-tip" ref=${box}
      aria-hidden="true"><strong>${plural(selecting, "item")}</strong></div>`;
  const value = plane?.data[ordinal];
  const state = item?.state ?? (layer.name === "state" ? stateName(value) : "");
  return html`<div class="map-tip" ref=${box} aria-hidden="true" data-test="tip">
    <div class="map-tip-head">
      ${item ? html`<strong><${Text} max=${60}>${item.key}<//></strong>` : html`<strong class="muted">…</strong>`}
      <span class="muted">#${ordinal}</span>
    </div>
    <div class="map-tip-facts">
      ${state && html`<span><i class=${"swatch state-" + numberOf(state)}></i>${stateWord(state)}</span>`}
      ${item && html`<span>${plural(item.attempts, "attempt")}</span>`}
      ${layer.name !== "state" && layer.name !== "attempts" && html`<span>${valueText(layer, value)}</span>`}
    </div>
    ${item?.error && html`<p class="map-tip-error"><b><${Text} max=${60}>${item.error.code}<//></b>
      <${Text} max=${160}>${item.error.message}<//></p>`}
    ${error && html`<p class="muted">${inert(error.message, 120)}</p>`}
  </div>`;
}

const NAMES = ["waiting", "held", "ready", "scheduled", "in_flight", "done", "failed", "skipped", "stale"];

export function numberOf(state) {
  return Math.max(0, NAMES.indexOf(state));
}

/** Spoken is the item under the cursor, read out when it rests, and shown below the map. */
export function Spoken({ at, layer, plane }) {
  return html`<p class="map-spoken" role="status" aria-live="polite"
      data-test="spoken">${at && said(at, layer, plane)}</p>`;
}

function said({ text, ordinal, item, err }, layer, plane) {
  if (text) return text;
  if (err) return `Item ${ordinal}: ${inert(err.message, 120)}`;
  if (!item) return `Item ${ordinal}`;
  const error = item.error ? `: ${inert(item.error.code, 60)}, ${inert(item.error.message, 160)}` : "";
  const value = plane?.data[ordinal];
  const more = layer.name === "latency" || layer.name === "age" ? `, ${valueText(layer, value)}` : "";
  return html`Item ${ordinal}, <bdi>${inert(item.key, 80)}</bdi>: ${stateWord(item.state)}, ${plural(item.attempts, "attempt")}${more}${error}`;
}

/** bandText names a value's band, or its state. */
export function bandText(layer, value) {
  return layer.name === "state" ? stateText(value) : layer.bands[bandOf(layer, value)]?.text;
}
