// How far the run before this one was after the same time.
import { html } from "../html.js";
import { Text, useLoad } from "../ui.js";
import { query, segment } from "../api.js";
import { duration, num, percent, short } from "../format.js";
import { Link } from "../router.js";
import { sum } from "../charts/timeline.js";
import { lasted } from "./head.js";

/** beside is how far a run that ended was after that many seconds: {share, failed, rate}, by its timeline. */
export function beside({ bucket_seconds: width, steps }, seconds) {
  const failed = sum(steps.map((s) => s.failed));
  const all = sum([...steps.map((s) => s.done), failed]);
  const until = (values, end) => values.reduce((n, v, i) => n + v * Math.min(1, Math.max(0, end / width - i)), 0);
  return { share: until(all, seconds) / Math.max(1, until(all, Infinity)), failed: Math.floor(until(failed, seconds)),
    rate: Math.round((all[Math.floor(seconds / width)] ?? 0) / width) };
}

/** Beside is a line about the last completed run of the same plan. Reruns are left out: their time is another. */
export function Beside({ run }) {
  const { data } = useLoad(run.generation === 1 ? "/runs" + query({ plan: run.plan, state: "completed", before: run.id, limit: 5 }) : "");
  const last = data?.runs.find((r) => r.generation === 1);
  const { data: timeline } = useLoad(last ? `/runs/${segment(last.id)}/timeline` : "");
  if (!timeline) return null;
  const took = (new Date(timeline.to) - new Date(timeline.from)) / 1000;
  const seconds = lasted(run);
  const was = beside(timeline, seconds);
  return html`<p class="muted" data-test="beside">By this time the last run, <${Link} to=${`/runs/${segment(last.id)}`}><${Text}
    max=${60}>${last.name || last.plan}<//><//>, had ${seconds < took ? `${percent(was.share)}, ${num(was.failed)} failed, ${short(was.rate)}/s`
      : `ended: after ${duration(took)}, ${num(last.failed)} failed`}.</p>`;
}
