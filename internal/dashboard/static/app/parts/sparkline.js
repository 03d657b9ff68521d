// A small line of recent values, collected while the page is open.

import { html, useRef } from "../html.js";
import { num } from "../format.js";

const kept = 60;
const drawnFrom = 3; // values; fewer make no line

/** useHistory collects values by name: it takes a map of values each timestamp changes, and returns all lists. */
export function useHistory(stamp, values) {
  const held = useRef({ stamp: 0, lists: new Map() });
  if (stamp && stamp !== held.current.stamp) {
    held.current.stamp = stamp;
    for (const [name, value] of values) {
      const list = held.current.lists.get(name) ?? [];
      held.current.lists.set(name, [...list, value].slice(-kept));
    }
  }
  return held.current.lists;
}

export function Sparkline({ values = [], label, width = 72, height = 20 }) {
  const most = Math.max(...values, 0);
  const step = width / (kept - 1);
  const x = (i) => width - (values.length - 1 - i) * step;
  const y = (v) => height - 1 - (most > 0 ? (v / most) * (height - 3) : 0);
  const line = values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  if (values.length < drawnFrom) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const area = `${x(0).toFixed(1)},${height} ${line} ${width},${height}`;
  return html`<svg class="spark" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`${label}, at most ${num(most)}`}>
    <polygon points=${area} /><polyline points=${line} />
  </svg>`;
}
