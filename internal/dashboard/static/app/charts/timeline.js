// Throughput, latency and events of a run over time, on one axis.
import { html, useMemo } from "../html.js";
import { Card, Empty, ErrorBox, Select, Skeleton, useLoad } from "../ui.js";
import { query, segment } from "../api.js";
import { duration, inert, short } from "../format.js";
import { setQuery } from "../router.js";
import { Chart } from "./chart.js";
import { Lanes, axis } from "./lanes.js";
import { Fan } from "../parts/forecast.js";

const BUCKETS = 120; // at most; a bucket has at least 2 s, or single requests would show as spikes
const EVERY = 3; // seconds, while the run is in progress
const LINES = 6; // steps with a line each

export function middles({ from, bucket_seconds: width, steps }) {
  const begin = new Date(from).getTime() / 1000;
  const n = Math.max(0, ...steps.map((s) => s.done.length));
  return Array.from({ length: n }, (_, i) => begin + (i + 0.5) * width);
}

export function sum(all) {
  const n = Math.max(0, ...all.map((v) => v.length));
  return Array.from({ length: n }, (_, i) => all.reduce((total, v) => total + (v[i] ?? 0), 0));
}

const perSecond = (values, width) => values.map((v) => (v === null ? null : v / width));

/** throughput is the lines of the first chart: each step's, or done and failed of one step. */
export function throughput({ steps, bucket_seconds: width }) {
  const failed = { label: "failed", color: "--state-6", values: perSecond(sum(steps.map((s) => s.failed)), width) };
  if (steps.length === 1) return [{ label: "done", color: "--state-5", fill: true, values: perSecond(steps[0].done, width) }, failed];
  const lines = steps.slice(0, LINES).map((s, i) => ({ label: inert(s.step, 40), color: `--line-${i}`, values: perSecond(s.done, width) }));
  return [...lines, failed];
}

/** latency is the lines of the second: p50 and p99 of one step, or p99 of each. */
export function latency({ steps }) {
  if (steps.length === 1) {
    return [{ label: "p50", color: "--line-0", values: steps[0].p50_ms }, { label: "p99", color: "--line-3", values: steps[0].p99_ms }];
  }
  return steps.slice(0, LINES).map((s, i) => ({ label: inert(s.step, 40), color: `--line-${i}`, values: s.p99_ms }));
}

// quantum rounds, so that the request stays the same for a while as the run ages and is not refetched each second.
const quantum = (n) => (n < 30 ? 10 * Math.ceil(n / 10) : 30 * Math.ceil(n / 30));

const rate = (v) => (v === null || v === undefined ? "–" : `${short(v < 100 ? Math.round(v * 10) / 10 : Math.round(v))}/s`);
const time = (v) => (v === null || v === undefined ? "–" : duration(v / 1000));

/** shortTime is a time in one unit, for an axis. */
export function shortTime(ms) {
  const [unit, size] = [["h", 36e5], ["min", 6e5], ["s", 1000], ["ms", 0]].find(([, size]) => ms >= size);
  return `${Number((ms / (unit === "min" ? 6e4 : size || 1)).toPrecision(2))} ${unit}`;
}

/** Timeline covers the current generation or, if time is "all", the whole run. entries: its history. */
export function Timeline({ run, step, time: of = "", entries }) {
  const live = run.state === "running" || run.state === "loading";
  const all = of === "all" && run.generation > 1;
  const buckets = all ? BUCKETS : Math.max(10, Math.min(BUCKETS, Math.floor(run.seconds / 2)));
  const path = `/runs/${segment(run.id)}/timeline${query({ step, buckets: live ? quantum(buckets) : buckets, all: all ? "true" : "" })}`;
  const { data, error, reload } = useLoad(path, [run.generation, run.state], { every: live ? EVERY : 0 });
  const drawn = useMemo(() => data && { times: middles(data), through: throughput(data), late: latency(data), span: axis(data),
    some: data.steps.some((s) => s.done.length > 0) }, [data]);
  const several = data?.steps.length > 1;
  const choice = run.generation > 1 && html`<${Select} label="Time" value=${all ? "all" : ""} test="timeline-time"
    options=${[["", "Since it was last run again"], ["all", "From its start"]]} onChange=${(time) => setQuery({ time })} />`;
  return html`<${Card} title="Timeline" test="timeline" class="timeline" actions=${choice}>
    <${ErrorBox} error=${error} retry=${reload} />
    ${!drawn && !error && html`<${Skeleton} height="320px" />`}
    ${drawn && !drawn.some && html`<${Empty} title="Nothing has been answered yet" />`}
    ${drawn?.some && html`<div class="timeline-axis"><${Chart} name="Items a second" times=${drawn.times} series=${drawn.through}
        span=${drawn.span} unit=${rate} test="throughput" />
      <${Lanes} timeline=${data} entries=${entries} /></div>
      ${live && !step && !all && html`<${Fan} run=${run} timeline=${data} />`}
      <${Chart} name=${several ? "Latency of requests, p99" : "Latency of requests"} times=${drawn.times}
          series=${drawn.late} span=${drawn.span} unit=${time} tick=${shortTime} scale="log" test="latency" />`}
  <//>`;
}
