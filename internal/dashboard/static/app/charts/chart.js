// A chart over time, drawn by uPlot, in the colours of the page.
import { html, useEffect, useRef } from "../html.js";
import uPlot from "uplot";
import { onTheme } from "../heatmap/theme.js";

const HEIGHT = 150;

/**
 * Chart draws series over time. times: seconds since 1970; series: [{label, values, colour (a property of the style
 * sheet), fill, unit(value)}]; scale: "linear" or "log"; span: where the axis begins and ends, for charts that share one.
 * name says what it is, for those who do not see it.
 */
export function Chart({ times, series, span, name, unit, scale = "linear", test }) {
  const box = useRef(null);
  const plot = useRef(null);
  const data = [times, ...series.map((s) => s.values)];
  const shape = series.map((s) => s.label + s.colour + (s.fill ?? "")).join() + scale;
  const latest = useRef(null);
  latest.current = { series, unit, data, span };

  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(box.current, latest, scale), latest.current.data, box.current);
    };
    make();
    const off = onTheme(make);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    observer.observe(box.current);
    return () => {
      off();
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => { plot.current?.setData(data); }, [times, ...series.map((s) => s.values)]);

  return html`<figure class="chart" data-test=${test}>
    <figcaption><span class="chart-name">${name}</span><span class="chart-legend">${series.map((s) => html`<span
        key=${s.label}>
      <i class="swatch line" style=${{ background: `var(${s.colour})` }}></i>${s.label} <b
          class="num">${unit(last(s.values))}</b></span>`)}</span></figcaption>
    <div class="chart-box" ref=${box} role="img" aria-label=${spoken(name, series, unit)}></div>
  </figure>`;
}

function last(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

function spoken(name, series, unit) {
  return `${name}: ${series.map((s) => {
    const known = s.values.filter((v) => v !== null);
    return known.length === 0 ? `${s.label} nothing yet` : `${s.label} now ${unit(last(s.values))}, at most ${unit(Math.max(...known))}`;
  }).join("; ")}`;
}

function options(box, latest, scale) {
  const { series, unit } = latest.current;
  const style = getComputedStyle(box);
  const read = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: read("--muted"), grid: { stroke: read("--line"), width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
  return {
    width: Math.max(120, box.clientWidth), height: HEIGHT, padding: [8, 18, 0, 0], legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { x: { time: true, range: (u, low, high) => latest.current.span ?? [low, high] }, y: scale === "log" ? { distr: 3, log: 10, range: logRange } : { range: (u, low, high) => [0, Math.max(high * 1.08, 1)] } },
    axes: [
      { ...axis, size: 26, space: 64, values: [[3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"], [0.001, "{ss}.{fff}"]] },
      { ...axis, size: 52, space: 34, values: (u, ticks) => ticks.map((v) => (v === null ? "" : unit(v))) },
    ],
    series: [{}, ...series.map((s) => ({
      label: s.label, stroke: read(s.colour), width: 1.75, spanGaps: true, points: { show: false },
      fill: s.fill ? faded(read(s.colour)) : undefined, paths: s.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    }))],
    hooks: { setCursor: [(u) => tell(u, unit)] },
  };
}

function logRange(u, low, high) {
  if (!(high > 0)) return [1, 100];
  return [Math.max(0.1, 10 ** Math.floor(Math.log10(Math.max(low, 0.1)))), 10 ** Math.ceil(Math.log10(high * 1.01))];
}

// tell shows the values under the pointer above the chart.
function tell(u, unit) {
  const spans = u.root.closest(".chart").querySelectorAll(".chart-legend b");
  const at = u.cursor.idx;
  u.series.slice(1).forEach((s, i) => {
    const values = u.data[i + 1];
    const value = at === null || at === undefined ? last(values) : values[at];
    if (spans[i]) spans[i].textContent = unit(value);
  });
}

// faded is a colour with little of it, whatever its notation.
function faded(colour) {
  return `color-mix(in srgb, ${colour} 16%, transparent)`;
}
