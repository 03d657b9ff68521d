// A chart over time in the page's colors.
import { html, useEffect, useRef, useState } from "../html.js";
import { seconds, timeLabel, values } from "./ticks.js";

const HEIGHT = 150;
const EDGE = { top: 8, right: 18, bottom: 26, left: 52 }; // margins of the plot; .lanes in style/run.css depends on them
const FLOOR = HEIGHT - EDGE.bottom;

/**
 * Chart draws series over time. times: seconds since 1970; series: [{label, values, color (a CSS property), fill}],
 * null for gaps; scale: "linear" or "log"; span: the ends of the axis, for charts that share one. tick formats the
 * axis's values, briefly. name is for screen readers.
 */
export function Chart({ times, series, span = [times[0], times.at(-1)], name, unit, tick = unit, scale = "linear", test }) {
  const box = useRef(null);
  const [width, setWidth] = useState(600);
  const [cursor, setCursor] = useState(null); // index of the time under the pointer
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.max(160, box.current.clientWidth)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const right = width - EDGE.right;
  const x = (t) => EDGE.left + (t - span[0]) / (span[1] - span[0] || 1) * (right - EDGE.left);
  const known = series.flatMap((s) => s.values).filter((v) => v !== null && v !== undefined);
  const { ticks, y } = values(scale, known, FLOOR, EDGE.top);
  const point = (e) => {
    const t = span[0] + (e.clientX - box.current.getBoundingClientRect().left - EDGE.left) / (right - EDGE.left) * (span[1] - span[0]);
    setCursor(times.reduce((best, at, i) => (Math.abs(at - t) < Math.abs(times[best] - t) ? i : best), 0));
  };
  const at = cursor !== null && cursor < times.length ? cursor : null;
  const shown = (s) => unit(at === null ? last(s.values) : s.values[at]);
  const { step, all } = seconds(span, (right - EDGE.left) / 84);
  return html`<figure class="chart" data-test=${test}>
    <figcaption><span class="chart-name">${name}</span><span class="chart-legend">${series.map((s) => html`<span
        key=${s.label}>
      <i class="swatch line" style=${{ background: `var(${s.color})` }}></i>${s.label} <b class="num">${shown(s)}</b></span>`)}</span></figcaption>
    <div class="chart-box" ref=${box} role="img" aria-label=${spoken(name, series, unit)} onPointerMove=${point} onPointerLeave=${() => setCursor(null)}>
      <svg width=${width} height=${HEIGHT}>
        ${ticks.map((v) => html`<line key=${v} x1=${EDGE.left} x2=${right} y1=${y(v)} y2=${y(v)} /><text class="chart-y" x=${EDGE.left - 7} y=${y(v)}>${tick(v)}</text>`)}
        ${all.map((t) => html`<line key=${t} x1=${x(t)} x2=${x(t)} y1=${EDGE.top} y2=${FLOOR} />${
          x(t) < width - 34 && html`<text class="chart-x" x=${x(t)} y=${HEIGHT - 8}>${timeLabel(t, step)}</text>`}`)}
        ${series.filter((s) => s.fill).map((s) => html`<path key=${s.label} d=${filled(times, s.values, x, y)} style=${{ fill: `var(${s.color})`, opacity: 0.16 }} />`)}
        ${series.map((s) => html`<path key=${s.label} d=${line(times, s.values, x, y)} style=${{ stroke: `var(${s.color})` }} />${
          alone(times, s.values).map(([t, v]) => html`<circle key=${t} cx=${x(t)} cy=${y(v)} r="2" style=${{ fill: `var(${s.color})` }} />`)}`)}
        ${at !== null && html`<line class="chart-cursor" x1=${x(times[at])} x2=${x(times[at])} y1=${EDGE.top} y2=${FLOOR} />`}
      </svg></div>
  </figure>`;
}

/** pieces are the points of a series, [time, value], apart where a value is missing. */
export function pieces(times, all) {
  const out = [];
  times.forEach((t, i) => {
    if (all[i] === null || all[i] === undefined) return;
    if (i === 0 || all[i - 1] === null || all[i - 1] === undefined) out.push([]);
    out.at(-1).push([t, all[i]]);
  });
  return out;
}

// alone are points without neighbors, which a line does not show.
const alone = (times, all) => pieces(times, all).filter((p) => p.length === 1).map(([point]) => point);

const through = (points, x, y) => points.map(([t, v], i) => `${i ? "L" : "M"}${x(t).toFixed(1)},${y(v).toFixed(1)}`).join("");
const line = (times, all, x, y) => pieces(times, all).map((points) => through(points, x, y)).join("");
const filled = (times, all, x, y) => pieces(times, all).map((points) =>
  `${through(points, x, y)}L${x(points.at(-1)[0]).toFixed(1)},${FLOOR}L${x(points[0][0]).toFixed(1)},${FLOOR}Z`).join("");

const last = (all) => all.findLast((v) => v !== null && v !== undefined) ?? null;

function spoken(name, series, unit) {
  return `${name}: ${series.map((s) => {
    const known = s.values.filter((v) => v !== null);
    return known.length === 0 ? `${s.label} nothing yet` : `${s.label} now ${unit(last(s.values))}, at most ${unit(Math.max(...known))}`;
  }).join("; ")}`;
}
