// Colors of values. States have the style sheet's colors; attempts, latency and age have scales from calm to
// glaring that remain ordered for color-blind users.
import { State, UNLOADED } from "./store.js";

/** STATES in the order of the legend: those that need attention first, then the stages of an item. */
export const STATES = [
  { value: State.FAILED, name: "failed", text: "Failed", why: "An error that is final." },
  { value: State.SKIPPED, name: "skipped", text: "Left out", why: "A step that it needs has failed for it." },
  { value: State.SCHEDULED, name: "scheduled", text: "To be retried", why: "Waits for its next attempt." },
  { value: State.IN_FLIGHT, name: "in_flight", text: "In flight", why: "A service has been asked." },
  { value: State.STALE, name: "stale", text: "Being redone", why: "Done, and being recomputed." },
  { value: State.READY, name: "ready", text: "Ready", why: "May be requested now." },
  { value: State.HELD, name: "held", text: "Held", why: "Waits for the canary, or in line behind another item." },
  { value: State.WAITING, name: "waiting", text: "Waiting", why: "Waits for a step before." },
  { value: State.DONE, name: "done", text: "Done", why: "Has its result." },
];

// Priority of states that share a pixel: failed first, then those in progress.
const ORDER = [
  State.DONE, State.WAITING, State.READY, State.HELD, State.STALE, State.IN_FLIGHT, State.SCHEDULED, State.SKIPPED,
  State.FAILED,
];

export function stateName(value) {
  return STATES.find((s) => s.value === value)?.name ?? "unknown";
}

export function stateText(value) {
  return STATES.find((s) => s.value === value)?.text ?? "Not loaded";
}

/** stateRank ranks states for the pyramid; those in only, if not empty, rank highest. */
export function stateRank(only = new Set()) {
  const rank = new Uint8Array(256);
  ORDER.forEach((value, i) => (rank[value] = i + 1 + (only.has(value) ? 20 : 0)));
  return rank;
}

/** valueRank ranks the values of other layers by size; those for which inBand is true rank highest. */
export function valueRank(inBand = null) {
  const rank = new Uint16Array(256);
  for (let v = 0; v < UNLOADED; v++) rank[v] = v + 1 + (inBand && inBand(v) ? 300 : 0);
  return rank;
}

// Anchors of the scale of times and attempts: a shortened inferno, without black and white.
const LIGHT = ["#d9e2f2", "#a9c3ea", "#8a93e0", "#9a5fc9", "#c23d8f", "#dd3f54", "#c81e1e"];
const DARK = ["#1d2b44", "#27457a", "#4a4bb0", "#8446b8", "#c2468f", "#ee6a5a", "#ffc24d"];

// code → time, as the server packs it: code = 1 + round(12 · log2(1 + t)).
export function unpack(code) {
  return code <= 0 ? 0 : 2 ** ((code - 1) / 12) - 1;
}

export function pack(t) {
  return Math.min(UNLOADED - 1, 1 + Math.round(12 * Math.log2(1 + Math.max(0, t))));
}

const span = (from, to, text) => ({ from, to, text });

/**
 * LAYERS say how to read a plane. A band is a range of values with a name in the legend; the color scale runs over
 * the bands, from the first after "none" to the last.
 */
export const LAYERS = {
  state: { name: "state", text: "State", why: "Where each item is." },
  attempts: {
    name: "attempts", text: "Attempts", why: "How often each item was requested.",
    bands: [
      span(0, 0, "none yet"), span(1, 1, "1 attempt"), span(2, 2, "2 attempts"), span(3, 3, "3"), span(4, 5, "4 to 5"),
      span(6, 9, "6 to 9"),
      span(10, 254, "10 or more"),
    ],
  },
  latency: {
    name: "latency", text: "Latency", why: "How long the request took that brought each item's outcome.",
    bands: [
      span(0, 0, "no outcome"), ...times([10, 50, 250, 1000, 5000, 30000], ["under 10 ms", "10–50 ms", "50–250 ms",
        "0.25–1 s", "1–5 s", "5–30 s", "over 30 s"]),
    ],
  },
  age: {
    name: "age", text: "Age", why: "How long ago each item last changed.",
    bands: [
      span(0, 0, "never"), ...times([10, 60, 600, 3600, 21600, 86400], ["under 10 s", "10 s–1 min", "1–10 min",
        "10–60 min", "1–6 h", "6–24 h", "over a day"]),
    ],
  },
};

function times(limits, texts) {
  let from = 1;
  return texts.map((text, i) => {
    const to = i < limits.length ? pack(limits[i]) : UNLOADED - 1;
    const band = span(from, to, text);
    from = to + 1;
    return band;
  });
}

export function bandOf(layer, value) {
  return layer.bands.findIndex((b) => value >= b.from && value <= b.to);
}

export function bandColors(layer, dark, none) {
  const n = layer.bands.length - 1;
  return layer.bands.map((_, i) => (i === 0 ? none : scaleAt(dark ? DARK : LIGHT, n === 1 ? 0 : (i - 1) / (n - 1))));
}

/**
 * colors returns the pixels of all 256 values of a layer. theme: {dark, states: [[r, g, b]…], none, ground}; only:
 * the highlighted state values or band indexes; the rest fades.
 */
export function colors(layer, theme, only = new Set()) {
  const out = new Uint32Array(256).fill(pixel(theme.unloaded));
  const fade = (rgb, bright) => pixel(bright ? rgb : mix(rgb, theme.ground, 0.86));
  if (layer.name === "state") {
    theme.states.forEach((rgb, v) => (out[v] = fade(rgb, only.size === 0 || only.has(v))));
    return out;
  }
  const bands = bandColors(layer, theme.dark, theme.none);
  for (let v = 0; v < UNLOADED; v++) {
    const band = bandOf(layer, v);
    const from = bands[band];
    const to = band > 0 && band + 1 < bands.length ? bands[band + 1] : from;
    const { from: low, to: high } = layer.bands[band];
    const rgb = mix(from, to, high > low ? ((v - low) / (high - low + 1)) * 0.85 : 0);
    out[v] = fade(rgb, only.size === 0 || only.has(band));
  }
  return out;
}

// The minimum weight of the worst value of a pixel, so that it is visible even if rare.
const LEAST_SEEN = 0.25;

/**
 * blends are the colors of shared pixels, by blendAt: the commonest value's, tinted by the worst one's according to
 * its share. colors are those of states.
 */
export function blends(colors) {
  const out = new Uint32Array(1 << 12);
  const rgb = (p) => [p & 255, (p >> 8) & 255, (p >> 16) & 255];
  for (let most = 0; most < 9; most++) {
    for (let worst = 0; worst < 9; worst++) {
      for (let step = 0; step < 16; step++) {
        const seen = worst === most ? 1 : LEAST_SEEN + (1 - LEAST_SEEN) * Math.sqrt(step / 15);
        out[(most << 8) | (worst << 4) | step] = pixel(mix(rgb(colors[most]), rgb(colors[worst]), seen));
      }
    }
  }
  return out;
}

/** blendAt is the index of a blend; share is 0 to 255. */
export const blendAt = (most, worst, share) => (most << 8) | (worst << 4) | (share >> 4);

function scaleAt(scale, share) {
  const at = share * (scale.length - 1);
  const i = Math.min(scale.length - 2, Math.floor(at));
  return mix(rgbOf(scale[i]), rgbOf(scale[i + 1]), at - i);
}

/** rgbOf parses #rgb, #rrggbb and rgb(…) of computed styles; anything else is gray. */
export function rgbOf(text) {
  const t = text.trim();
  const hex = /^#([0-9a-f]{3}|[0-9a-f]{6})$/i.exec(t)?.[1];
  if (hex?.length === 3) return [...hex].map((d) => parseInt(d + d, 16));
  if (hex) return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const numbers = /^rgba?\(([^)]*)\)$/.exec(t)?.[1].split(/[\s,/]+/).slice(0, 3).map(Number);
  return numbers?.length === 3 && numbers.every((n) => n >= 0) ? numbers : [128, 128, 128];
}

export function mix(a, b, share) {
  return a.map((v, i) => Math.round(v + (b[i] - v) * share));
}

/** pixel is a color for ImageData's Uint32Array (little-endian, as on all browsers). */
export function pixel([r, g, b]) {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

export function css([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}
