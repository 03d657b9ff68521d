// When a run will end: a band, what is waited for, or why no one knows.
import { html, useEffect, useState } from "../html.js";
import { useLoad } from "../ui.js";
import { query, segment } from "../api.js";
import { clock, duration, inert, percent } from "../format.js";

/** spanText formats a range of durations: 40 to 55 min. */
export function spanText({ p10_seconds: low, p90_seconds: high }) {
  const [unit, by, digits] = high >= 3 * 3600 ? ["h", 3600, 1] : high >= 180 ? ["min", 60, 0] : ["s", 1, 0];
  const [from, to] = [(low / by).toFixed(digits), (high / by).toFixed(digits)];
  return from === to ? `${to} ${unit}` : `${from} to ${to} ${unit}`;
}

/** forecastText summarizes a forecast: {value, more}. */
export function forecastText(forecast, now = new Date()) {
  if (!forecast) return { value: "–", more: "" };
  const { p10, p50, p90, then, waits_for: what, waits_from: from, why_not: why } = forecast;
  if (p50) {
    const [low, high] = [clock(p10, { now }), clock(p90, { now })];
    return { value: clock(p50, { now }), more: low === high ? "" : `${low} to ${high}` };
  }
  if (then) return { value: `${spanText(then)}`, more: `after ${inert(what, 120)}${from ? `, from about ${clock(from, { now })}` : ""}` };
  return { value: "not yet", more: inert(why, 160) };
}

// dueText says whether a run will be done by its time, or was.
export function dueText(run) {
  const late = (new Date(run.finished_at ?? run.at ?? Date.now()) - new Date(run.done_by)) / 1000;
  if (late > 0) return `${duration(late)} late`;
  if (run.finished_at) return run.state === "completed" ? "in time" : false;
  if (run.at_risk) return `will be ${run.at_risk.late} late`;
  return run.gentle ? "gently" : false;
}

const REST = 150; // ms before a request

/** sideBySide places forecasts on one line from 0 to 100; null: one of them has no time. */
export function sideBySide({ at, variants }) {
  const all = variants.map((v) => v.forecast);
  if (!all.every((f) => f.p50)) return null;
  const [from, end] = [new Date(at), Math.max(...all.map((f) => new Date(f.p90)))];
  const share = (t) => (100 * (new Date(t) - from)) / Math.max(end - from, 1);
  return all.map((f) => ({ low: share(f.p10), middle: share(f.p50), high: share(f.p90) }));
}

/** Supposed says when a run would end if a setting were changed; nothing is. It follows a slider being dragged. */
export function Supposed({ run, change }) {
  const [asked, setAsked] = useState("");
  const { data, loading, error } = useLoad(asked && `/runs/${segment(run.id)}/forecast${query({ change: asked })}`);
  useEffect(() => {
    if (loading && asked) return undefined; // one at a time, so that each is seen
    const timer = setTimeout(() => setAsked(change), REST);
    return () => clearTimeout(timer);
  }, [change, loading]);
  if (!data || error) return null;
  const { changes, forecast } = data.variants[1];
  const { value, more } = forecastText(forecast);
  const drawn = sideBySide(data);
  return html`<div class="supposed" role="status" data-test="supposed"><small class="muted">${inert(changes[0], 80)}: would end ${value}${more && ` (${more})`}</small>
    ${drawn && html`<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${drawn.map((b, i) => html`<g class=${i ? "then" : "now"}>
      <rect x=${b.low} y=${6 * i} width=${Math.max(b.high - b.low, 0.5)} height="4" /><rect class="middle" x=${b.middle - 0.25} y=${6 * i} width="0.5" height="4" /></g>`)}</svg>`}</div>`;
}

const [WIDTH, HEIGHT] = [600, 90];

/** fan is the drawing of a run's progress as points, and the corners of the forecast; null: no forecast. */
export function fan(run, timeline) {
  const { p10, p50, p90 } = run.forecast ?? {};
  if (!p50) return null;
  const seconds = (t) => new Date(t).getTime() / 1000;
  const [begin, now, end] = [seconds(timeline.from), seconds(timeline.to), seconds(p90)];
  const x = (t) => ((t - begin) / Math.max(end - begin, 1)) * WIDTH;
  const y = (share) => HEIGHT - share * HEIGHT;
  const all = Math.max(run.items * run.steps.length, 1);
  const ended = timeline.steps.reduce((sums, s) => s.done.map((n, i) => (sums[i] ?? 0) + n + s.failed[i]), []);
  const before = run.progress - ended.reduce((a, b) => a + b, 0) / all;
  let so = Math.max(before, 0);
  const way = [[x(begin), y(so)]];
  ended.forEach((n, i) => {
    so += n / all;
    way.push([x(Math.min(begin + (i + 1) * timeline.bucket_seconds, now)), y(Math.min(so, 1))]);
  });
  const at = [x(now), y(run.progress)];
  return { way, at, p10: [x(seconds(p10)), 0], p50: [x(seconds(p50)), 0], p90: [WIDTH, 0] };
}

const points = (all) => all.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");

export function Fan({ run, timeline }) {
  const f = fan(run, timeline);
  if (!f) return null;
  const { value, more } = forecastText(run.forecast);
  const text = `Progress ${percent(run.progress)} after ${duration(run.seconds)}; ends ${value}, ${more}`;
  return html`<figure class="fan" data-test="fan"><figcaption>Progress · ends <b>${value}</b> <span class="muted">${more}</span></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${text}>
      <polygon class="band" points=${points([f.at, f.p10, f.p90])} />
      <polyline class="likely" points=${points([f.at, f.p50])} />
      <polyline class="way" points=${points([...f.way, f.at])} /></svg></figure>`;
}
