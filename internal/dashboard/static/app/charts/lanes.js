// The history of a run on the axis of its charts: bands for periods, marks for events.
import { html } from "../html.js";
import { Icon } from "../ui.js";
import { clock, inert } from "../format.js";
import { headline } from "./happened.js";

const STEPS = 12;   // steps with a lane, at most
const NEAR = 0.028; // of the axis: closer marks are merged

/** axis is the range of a timeline, in seconds since 1970. */
export function axis({ from, bucket_seconds: width, steps }) {
  const begin = new Date(from).getTime() / 1000;
  return [begin, begin + width * Math.max(1, ...steps.map((s) => s.done.length))];
}

const begins = (e) => (e.kind === "breaker" || e.kind === "outage" ? e.what === "open" : e.kind === "action" && e.what === "pause");
const ends = (e) => (e.kind === "breaker" || e.kind === "outage" ? e.what === "closed" : e.kind === "action" && ["resume", "approve", "cancel"].includes(e.what));
const laneOf = (e) => ({ breaker: `breaker of ${inert(e.who, 80)}`, outage: "no node running" })[e.kind] ?? "paused";

/** bands are pauses, open breakers and outages: [{lane, from, to}], in seconds. entries: newest first. */
export function bands(entries, [since, until]) {
  const open = new Map();
  const out = [];
  for (const e of [...entries].reverse()) {
    const at = new Date(e.at).getTime() / 1000;
    const lane = laneOf(e);
    if (begins(e) && !open.has(lane)) {
      open.set(lane, { lane, from: at, to: Math.max(at, until) });
      out.push(open.get(lane));
    } else if (ends(e) && open.has(lane)) {
      open.get(lane).to = at;
      open.delete(lane);
    } else if (e.kind === "breaker" && ends(e) && !out.some((b) => b.lane === lane)) {
      out.push({ lane, from: Math.min(since, at), to: at }); // it was open before all of this
    }
  }
  return out;
}

/** marks are the other events on the axis, close ones merged: [{at, entries}]. */
export function marks(entries, [from, to]) {
  const out = [];
  for (const e of [...entries].reverse()) {
    const at = new Date(e.at).getTime() / 1000;
    if (begins(e) || (ends(e) && e.what !== "cancel") || at < from - 2 || at > to + 2) continue;
    const last = out.at(-1);
    if (last && at - last.at < NEAR * (to - from)) last.entries.push(e);
    else out.push({ at, entries: [e] });
  }
  return out;
}

/** spans are the steps from their first to their last completed request: [{lane, from, to}]. */
export function spans({ from, bucket_seconds: width, steps }) {
  const begin = new Date(from).getTime() / 1000;
  return steps.filter((s) => s.requests.some((n) => n > 0)).map((s) => ({
    lane: inert(s.step, 40), step: steps.indexOf(s), from: begin + width * s.requests.findIndex((n) => n > 0),
    to: begin + width * (1 + s.requests.findLastIndex((n) => n > 0)),
  }));
}

const icons = {
  start: "play", open: "play", rerun: "repeat", reset: "repeat", cancel: "stop", note: "file", completed: "check", overdue: "warn",
  rewound: "warn", service: "upload", alert: "bell", node: "nodes",
};

const iconOf = (e) => icons[e.kind === "action" || e.kind === "event" ? e.what : e.kind] ?? "info";

/** Lanes is drawn below the chart whose axis it shares. The history list has the same content for screen readers. */
export function Lanes({ timeline, entries }) {
  const span = axis(timeline);
  const at = (t) => `${(100 * Math.min(1, Math.max(0, (t - span[0]) / (span[1] - span[0])))).toFixed(3)}%`;
  const points = marks(entries, span);
  const lasting = bands(entries, span).filter((b) => b.to >= span[0] && b.from <= span[1]);
  const steps = timeline.steps.length > 1 ? spans(timeline) : [];
  const lanes = new Map();
  for (const band of [...lasting, ...steps.slice(0, STEPS)]) lanes.set(band.lane, [...(lanes.get(band.lane) ?? []), band]);
  const times = (b) => `${b.lane}: ${clock(b.from * 1000)} to ${clock(b.to * 1000)}`;
  return html`<div class="lanes" role="img" data-test="lanes" aria-label="What happened when; the list of what happened has the same">
    <div class="lane-lines">${points.map((p) => html`<i key=${p.at} style=${{ left: at(p.at) }}></i>`)}</div>
    <div class="lane-marks">${points.map((p) => html`<span class=${"lane-mark is-" + p.entries.at(-1).kind} key=${p.at} data-test="mark"
        style=${{ left: at(p.at) }} title=${p.entries.map((e) => `${clock(e.at)} ${headline(e)}`).join("\n")}>
        ${p.entries.length > 1 ? p.entries.length : html`<${Icon} name=${iconOf(p.entries[0])} size=${11}/>`}</span>`)}</div>
    ${[...lanes].map(([lane, all]) => html`<div class="lane" key=${lane} data-test="lane"><span class="lane-name">${lane}</span>
      <div class="lane-track">${all.map((b) => html`<i key=${b.from} title=${times(b)} style=${{ left: at(b.from),
        width: `calc(${at(b.to)} - ${at(b.from)})`, background: `var(${colorOf(b, lane)})` }}></i>`)}</div></div>`)}
    ${steps.length > STEPS && html`<span class="lane-name">and ${steps.length - STEPS} more steps</span>`}
  </div>`;
}

const colorOf = (b, lane) => (b.step !== undefined ? (b.step < 6 ? `--line-${b.step}` : "--muted") : lane === "paused" ? "--warn-fill" : "--bad-fill");
