// The report of a run: durations, where the time went, and what was slow.
import { html } from "../html.js";
import { Button, ButtonLink, Card, Dialog, ErrorBox, Skeleton, Text, Time, useLoad } from "../ui.js";
import { BASE, segment } from "../api.js";
import { bytes, duration, failedShare, inert, num, plural, servedBy } from "../format.js";
import { causes } from "../parts/causes.js";
import { ended } from "./head.js";

export function Report({ run, onClose }) {
  const { data: r, error, reload } = useLoad(`/runs/${segment(run.id)}/report`);
  const footer = html`<a class="btn" href=${`${BASE}/runs/${segment(run.id)}/report`} target="_blank"
      rel="noopener">As JSON</a>`;
  return html`<${Dialog} title="Report" wide onClose=${onClose} footer=${footer} test="report">
    <${ErrorBox} error=${error} retry=${reload} />
    ${!r && !error && html`<${Skeleton} lines=${6} />`}
    ${r && html`<div class="report">
      <${Summary} run=${run} r=${r} />
      <${Steps} steps=${r.steps} />
      ${r.generations.length > 1 && html`<${Generations} all=${r.generations} />`}
      ${r.requests.by_cause?.length > 1 && html`<${Causes} all=${r.requests.by_cause} />`}
      <${Workers} title="Slowest services" all=${r.services} />
      <${Workers} title="Slowest endpoints" all=${r.endpoints} />
      ${r.errors.items > 0 && html`<p><${ButtonLink} to=${`/runs/${segment(run.id)}/errors`}
          icon="warn">${plural(r.errors.items, "failed item")}, in ${plural(r.errors.groups.length + (r.errors.more_groups ?? 0), "group")}<//></p>`}
    </div>`}
  <//>`;
}

function Summary({ run, r }) {
  const facts = [
    [run.generation > 1 ? "Took in all" : "Took", duration(r.seconds)], r.paused_seconds >= 0.5 && ["of it paused", duration(r.paused_seconds)],
    r.loading_seconds > 0 && ["Loading", duration(r.loading_seconds)], ["Items a second", num(Math.round(r.rate))],
    ["in the best ten seconds", num(Math.round(r.best_rate))], ["Requests", num(r.requests.count)],
    ["items in one", num(r.requests.mean_items)], ["half took no longer than", duration(r.requests.p50_seconds)],
    ["99 % no longer than", duration(r.requests.p99_seconds)], r.requests.tried_again > 0 && ["Items requested again", num(r.requests.tried_again)],
    r.requests.lost_to_nodes > 0 && ["Lost with nodes", num(r.requests.lost_to_nodes)],
    r.requests.lost_to_streams > 0 && ["Lost with streams", num(r.requests.lost_to_streams)],
  ].filter(Boolean);
  return html`<p>${r.complete ? "Every item has an outcome." : html`Not complete: ${r.unprocessed.map((u) => `${num(u.items)} ${u.state.replaceAll("_", " ")}`).join(", ")}.`}
      ${run.failed > 0 && ` ${num(run.failed)} failed (${failedShare(run)})${run.accepted ? `, ${num(run.accepted)} of them accepted` : ""}.`}</p>
    <dl class="report-facts">${facts.map(([name, value]) => html`<div
        key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// tiny formats times of single items, which may be far below a millisecond.
function tiny(seconds) {
  return seconds < 0.001 ? `${num(Number((seconds * 1e6).toPrecision(2)))} µs` : duration(seconds);
}

function grid(title, heads, rows) {
  return html`<section><h3>${title}</h3><div class="table-box"><table>
    <thead><tr>${heads.map((h, i) => html`<th scope="col" key=${h}
        class=${i > 0 ? "right" : ""}>${h}</th>`)}</tr></thead>
    <tbody>${rows.map((row, n) => html`<tr key=${n}>${row.map((cell, i) => (i === 0 ? html`<th scope="row"
        key="0">${cell}</th>` : html`<td class="right num"
        key=${i}>${cell}</td>`))}</tr>`)}</tbody></table></div></section>`;
}

function Steps({ steps }) {
  return grid("Steps", ["Step", "Done", "Failed", "Left out", "Requests", "p50", "p99", "Results"], steps.map((s) => [
    html`<${Text}
        max=${40}>${s.name}<//>`, num(s.done), num(s.failed), num(s.skipped), num(s.requests), duration(s.p50_seconds), duration(s.p99_seconds), s.result_bytes > 0 ? bytes(s.result_bytes) : "–"]));
}

function Generations({ all }) {
  return grid("Generations", ["Generation", "Started", "Took", "Paused", "Done", "Failed", "Items a second"], all.map((g) => [
    g.generation, html`<${Time} at=${g.started_at}
        mode="clock" />`, duration(g.seconds), duration(g.paused_seconds), num(g.done), num(g.failed), num(Math.round(g.rate))]));
}

function Causes({ all }) {
  return grid("Why requests were sent", ["Cause", "Requests", "Items"], all.map((c) => [causes[c.cause] ?? inert(c.cause.replaceAll("_", " ")), num(c.requests), num(c.items)]));
}

function Workers({ title, all }) {
  if (!all?.length) return null;
  return grid(title, ["Name", "Requests", "Items", "For an item", "p99 of a request"], all.map((w) => [
    html`<${Text}
        max=${60}>${servedBy(w.name)}<//>`, num(w.requests), num(w.items), tiny(w.seconds_per_item), duration(w.p99_seconds)]));
}

// A report reads every request and every failed item, so for a large run it is made on demand.
const SMALL = 250_000;

export function ReportCard({ run, onOpen }) {
  const shown = ended(run) && run.items * run.step_count <= SMALL;
  const { data: r, error } = useLoad(shown ? `/runs/${segment(run.id)}/report` : "", [run.generation, run.state]);
  if (!ended(run)) return null;
  if (!shown) {
    return html`<${Card} title="Report" test="report-card"><p
        class="muted">What it took, where the time went, and what was slow.</p>
      <div class="card-buttons"><${Button} icon="file" onClick=${onOpen}
          test="report-open">Make the report<//></div><//>`;
  }
  const slowest = r?.services?.[0];
  return html`<${Card} title="Report" test="report-card" actions=${html`<${Button} small onClick=${onOpen}
      test="report-open">All of it<//>`}>
    <${ErrorBox} error=${error} />
    ${!r && !error && html`<${Skeleton} lines=${4} />`}
    ${r && html`<dl class="kv report-kv">
      <dt>${run.generation > 1 ? "Took in all" : "Took"}</dt><dd>${duration(r.seconds)}${r.paused_seconds >= 0.5 && html` <span
          class="muted">(${duration(r.paused_seconds)} paused)</span>`}</dd>
      <dt>Best ten seconds</dt><dd>${num(Math.round(r.best_rate))} items/s</dd>
      <dt>Requests</dt><dd>${num(r.requests.count)} <span
          class="muted">with ${num(Math.round(r.requests.mean_items))} items each, on average</span></dd>
      <dt>Each took</dt><dd>${duration(r.requests.p50_seconds)} <span
          class="muted">(p99 ${duration(r.requests.p99_seconds)})</span></dd>
      ${r.requests.tried_again > 0 && html`<dt>Asked for again</dt><dd>${plural(r.requests.tried_again, "item")}</dd>`}
      ${slowest && html`<dt>Slowest service</dt><dd><${Text} max=${40}>${servedBy(slowest.name)}<//> <span
          class="muted">${tiny(slowest.seconds_per_item)} an item</span></dd>`}
    </dl>`}
  <//>`;
}
