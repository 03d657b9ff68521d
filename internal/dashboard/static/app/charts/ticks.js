// Ticks and labels of a chart's axes.
import { offset, parts } from "../zone.js";

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

/** seconds returns at most most round times for an axis: {step, all}. */
export function seconds([from, to], most) {
  const step = STEPS.find((s) => (to - from) / s <= most) ?? STEPS.at(-1) * Math.ceil((to - from) / STEPS.at(-1) / most);
  const zone = -offset(from * 1000);
  const all = [];
  for (let n = Math.ceil((from - zone) / step); n * step + zone <= to; n++) all.push(n * step + zone);
  return { step, all };
}

/** timeLabel formats a time with the precision of its axis. */
export function timeLabel(t, step) {
  const ms = Math.round(t * 1000);
  const p = parts(ms);
  if (step >= 86400) return `${p.year}-${p.month}-${p.day}`;
  if (step < 1) return `${p.second}.${Math.floor(ms % 1000 / 100)}`;
  return `${p.hour}:${p.minute}${step < 60 ? ":" + p.second : ""}`;
}

/** values returns the ticks of the value axis, and where a value is between floor and top: {ticks, y}. */
export function values(scale, known, floor, top) {
  const high = known.reduce((a, b) => Math.max(a, b), 0);
  if (scale === "log") {
    const low = Math.max(0.1, known.filter((v) => v > 0).reduce((a, b) => Math.min(a, b), high || 1));
    const from = Math.floor(Math.log10(low));
    const to = Math.max(from + 1, Math.ceil(Math.log10(Math.max(high * 1.01, 1))));
    const y = (v) => floor - (Math.log10(Math.max(v, 10 ** from)) - from) / (to - from) * (floor - top);
    return { ticks: Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i)).filter((_, i) => (to - from) < 5 || i % 2 === 0), y };
  }
  const most = Math.max(high * 1.08, 1);
  const rough = most / 4.4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((n) => n * size >= rough);
  return { ticks: Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step), y: (v) => floor - v / most * (floor - top) };
}
