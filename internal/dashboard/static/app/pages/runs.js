// The live list of runs, newest first.
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import {
  Page, Card, Table, StateBadge, Progress, Time, ErrorBox, Empty, useLoad, Skeleton, Search, Button, ButtonLink, Menu,
  Copy, Text, Duration, Num,
} from "../ui.js";
import { Link, go, setQuery } from "../router.js";
import { useKeys } from "../keys.js";
import { query as parameters } from "../api.js";
import { dueText, forecastText } from "../parts/forecast.js";
import { clock, num, percent, plural, shortId, short, timed } from "../format.js";
import { liveRuns } from "../live.js";
import { session } from "../session.js";
import { actionsOf, all, cancelSeveral, several } from "../runs/actions.js";

const states = ["running", "paused", "loading", "completed", "cancelled"];
const pageSize = 50;
const settled = 15000; // ms that a run may take to begin

export default function Runs({ query }) {
  const { state = "", q = "", before = "" } = query;
  const live = liveRuns.value;
  const filter = { state, q, before, limit: pageSize };
  // The stream carries the first page without a filter. Everything else is polled.
  const plain = !state && !q && !before;
  const { data, error, loading, reload } = useLoad("/runs" + parameters(filter), [], { every: live ? 5 : 2 });
  const [chosen, setChosen] = useState(new Set());
  const rates = useRef([]).current; // items per second of all runs, newest last
  const [, redraw] = useState(0);

  const runs = useMemo(() => merge(data?.runs, live, plain), [data, live]);
  const known = live ? live.runs : runs; // for the totals: the stream is unfiltered
  useEffect(() => {
    if (!known) return;
    rates.push(known.reduce((sum, run) => sum + (run.state === "running" ? run.rate : 0), 0));
    if (rates.length > 90) rates.shift();
    redraw((n) => n + 1);
  }, [runs, live]);

  useKeys([["s", "Start a run", () => go("/start")]]);
  const change = (changes) => setQuery({ before: "", ...changes }, { replace: !("before" in changes) });
  const active = (runs || []).filter((r) => ["running", "loading"].includes(r.state)).length;
  const none = runs && runs.length === 0 && plain;
  return html`<${Page} title="Runs" test="runs-page" actions=${html`
      ${!none && html`<${Menu} label="All runs" test="all-runs" items=${[
        { label: "Pause all…", icon: "pause", role: "operator", test: "pause-all", onClick: () => all("pause", active) },
        { label: "Resume all…", icon: "play", role: "operator", test: "resume-all", onClick: () => all("resume") },
      ]}/>`}
      <${Start}/>`}>
    ${!none && runs && html`<${Summary} runs=${known || runs} rates=${rates}/>`}
    ${!none && html`<div class="filters">
      <div class="segments" role="group" aria-label="State">${["", ...states].map((s) => html`<button type="button" key=${s}
        aria-pressed=${String(state === s)} data-test=${"state-" + (s || "all")} onClick=${() => change({ state: s })}>${
          s ? html`<i class=${"dot " + s}></i>${s[0].toUpperCase() + s.slice(1)}` : "All"}</button>`)}</div>
      <${Search} value=${q} onChange=${(text) => change({ q: text })} label="Search runs"
        placeholder="Name, plan, source, ID, user"/>
    </div>`}
    <${ErrorBox} error=${error} retry=${reload}/>
    ${!runs && !error && html`<${Card}><${Skeleton} lines=${6}/><//>`}
    ${none && html`<${First}/>`}
    <${Bulk} runs=${(runs || []).filter((r) => chosen.has(r.id))} onNone=${() => setChosen(new Set())}/>
    ${runs && !none && html`<${Card} flush label="Runs"><${List} runs=${runs} chosen=${chosen} onChoose=${setChosen} reset=${() =>
      change({ state: "", q: "" })}/><//>`}
    ${data && (before || data.next) && html`<nav class="pager" aria-label="Pages">
      ${before && html`<${Button} small onClick=${() => change({ before: "" })} icon="left" test="newest">Newest<//>`}
      ${data.next && html`<${Button} small test="older" busy=${loading && !data}
        onClick=${() => change({ before: data.next })}>Older<//>`}</nav>`}
  <//>`;
}

// open is the number of failed items not accepted.
const open = (run) => run.failed - (run.accepted ?? 0);

// merge overlays the stream on what was fetched. The stream has all unfinished runs, however old: they are added only
// if newer than the page's last.
function merge(fetched, live, plain) {
  if (!live) return fetched;
  const newest = new Map(live.runs.map((r) => [r.id, r]));
  if (!fetched) return undefined;
  const shown = fetched.map((r) => newest.get(r.id) || r);
  if (!plain) return shown;
  const have = new Set(shown.map((r) => r.id));
  const last = shown.length >= pageSize ? shown[shown.length - 1].id : "";
  return [...live.runs.filter((r) => !have.has(r.id) && r.id > last), ...shown].sort((a, b) => (a.id < b.id ? 1 : -1));
}

function Start() {
  if (session.value.role === "viewer") {
    return html`<${Button} kind="primary" icon="start" role="operator" test="start">Start a run<//>`;
  }
  return html`<${ButtonLink} to="/start" kind="primary" icon="start" test="start">Start a run<//>`;
}

// Bulk has the actions for the selected runs.
function Bulk({ runs, onNone }) {
  if (runs.length === 0) return null;
  const may = { pause: (r) => r.state === "running", resume: (r) => r.state === "paused" && r.hold?.kind === "operator",
    cancel: (r) => !["completed", "cancelled"].includes(r.state) };
  const button = (verb, label, icon, act) => {
    const those = runs.filter(may[verb]);
    return html`<${Button} small icon=${icon} role="operator" disabled=${those.length === 0} test=${"bulk-" + verb}
      onClick=${async () => { await act(those); onNone(); }}>${label}${those.length < runs.length && ` (${those.length})`}<//>`;
  };
  return html`<div class="bulk" role="region" aria-label="Chosen runs" data-test="bulk">
    <span><strong>${plural(runs.length, "run")}</strong> chosen</span>
    ${button("pause", "Pause", "pause", (those) => several("pause", those))}
    ${button("resume", "Resume", "play", (those) => several("resume", those))}
    ${button("cancel", "Cancel…", "stop", cancelSeveral)}
    <${Button} small kind="ghost" onClick=${onNone}>Choose none<//></div>`;
}

function List({ runs, reset, chosen, onChoose }) {
  const toggle = (id) => onChoose((was) => {
    const next = new Set(was);
    if (!next.delete(id)) next.add(id);
    return next;
  });
  const columns = [
    { key: "choose", srTitle: "Choose", label: "", class: "runs-choose", render: (r) => html`<input type="checkbox"
      checked=${chosen.has(r.id)} aria-label=${"Choose " + (r.name || shortId(r.id))} data-test="choose" onChange=${() => toggle(r.id)}/>` },
    { key: "name", title: "Run", class: "runs-name", render: (r) => html`
      <${Link} to=${"/runs/" + r.id} data-test="run-link"><${Text} max=${90}>${r.name || r.plan}<//><//>
      <span class="under"><${Text} max=${50}>${r.plan}${r.plan_version ? "@" + r.plan_version : ""}<//> · ${
        shortId(r.id)}${r.generation > 1 ? html` · <span title=${"Run again: " + plural(r.generation - 1, "time")}>generation ${r.generation}</span>` : ""}</span>` },
    { key: "state", title: "State", class: "runs-state", render: (r) => html`<${StateBadge} state=${r.state}
      failed=${open(r)}/><${Reason} run=${r}/>` },
    { key: "progress", title: "Progress", class: "runs-progress", render: (r) => html`<div class="bar">
      <${Progress} done=${r.done} failed=${r.failed} total=${r.items} share=${r.progress} state=${r.state}
        label=${"Progress of " + (r.name || r.plan)}/>
      <span class="under"><b>${percent(r.progress)}</b> ${num(r.done + r.failed)} of ${num(r.items)}</span></div>` },
    { key: "failed", title: "Failed", align: "right", render: (r) => (r.failed > 0
      ? html`<${Link} to=${`/runs/${r.id}/errors`} class=${open(r) > 0 ? "is-bad num" : "num"}>${num(r.failed)}<//>` : html`<span class="muted">0</span>`) },
    { key: "rate", title: "Items/s", align: "right", hide: "narrow", render: (r) => (r.state === "running"
      ? html`<${Num} value=${Math.round(r.rate)}/>` : html`<span class="muted">–</span>`) },
    { key: "ends", title: "Time", label: "Time", align: "right", class: "nowrap", render: (r) => html`<${Took} run=${r}/>` },
    { key: "created_at", title: "Started", align: "right", hide: "narrow", class: "nowrap", render: (r) => html`<${Time} at=${r.created_at}/>${
      r.generation > 1 && r.started_at && html`<span class="under">again <${Time} at=${r.started_at}/></span>`}` },
    { key: "menu", srTitle: "Actions", label: "", align: "right", class: "runs-menu", render: (r) => html`<${Menu} small kind="ghost"
      label=${"Actions for " + (r.name || shortId(r.id))} items=${actionsOf(r)} test="run-menu"/>` },
  ];
  return html`<${Table} caption="Runs, newest first" test="runs" columns=${columns} rows=${runs} rowKey=${(r) => r.id}
    href=${(r) => "/runs/" + r.id} empty=${html`<${Empty} icon="search" title="No run fits" test="no-match">
      <${Button} small onClick=${reset}>Show all runs<//><//>`}/>`;
}

// Reason explains a run's state if the state alone does not.
function Reason({ run }) {
  if (run.hold) {
    const what = { operator: run.hold.by ? `by ${run.hold.by}` : "by an operator", threshold: "too many failed",
      fail_fast: "too many first outcomes failed", canary: "canary waits for approval" }[run.hold.kind] || run.hold.kind;
    return html`<span class="under" title=${run.hold.detail}><${Text} max=${70}>${what}${
      run.hold.kind === "operator" && run.hold.detail ? ": " + run.hold.detail : ""}<//></span>`;
  }
  if (run.approval?.length > 0 && run.state === "running") {
    return html`<span class="under is-warn" data-test="waits-approval">step <${Text} max=${60}>${run.approval.join(", ")}<//> waits for an approval</span>`;
  }
  if (run.blocker) {
    return html`<span class="under is-warn" data-test="blocker"><${Text} max=${160}>${run.blocker.text}<//> · <${Time}
      at=${run.blocker.since} mode="for"/></span>`;
  }
  if (run.open) return html`<span class="under">open: takes items${run.open.overdue ? ", overdue" : ""}</span>`;
  if (run.state === "running" && run.rate === 0 && Date.now() - new Date(run.started_at) > settled) {
    return html`<span class="under is-warn">nothing moves: <${Link} to=${`/runs/${run.id}`}>see why<//></span>`;
  }
  if (run.state === "completed" && run.failed > 0) return html`<span class="under">${open(run) > 0 ? "with failures" : "failures accepted"}</span>`;
  return null;
}

function Took({ run }) {
  const due = run.done_by && run.state !== "cancelled" && dueText(run);
  return html`<${Ends} run=${run} />${run.done_by && (!run.finished_at || due !== "in time") && html`<span
      class=${"under" + (run.at_risk ? " bad-text" : "")} data-test="done-by">done by ${clock(run.done_by)}${due && `, ${due}`}</span>`}`;
}

function Ends({ run }) {
  if (run.finished_at) {
    return html`<span title="It took"><${Duration}
      seconds=${(new Date(run.finished_at) - new Date(run.started_at || run.created_at)) / 1000}/></span>${
      timed(run) && html`<span class="under">${timed(run)}</span>`}`;
  }
  const { value, more } = forecastText(run.forecast);
  if (run.forecast?.p50) return html`<span title="When it will end">ends ${value}</span><span class="under">${more}</span>`;
  return html`<span class="muted" title=${more}>${value}</span>${run.forecast?.then && html`<span class="under">${run.forecast.waits_from ? "after it will have waited" : "after it waited"}</span>`}`;
}

function Summary({ runs, rates }) {
  const count = (state) => runs.filter((r) => r.state === state).length;
  const rate = rates[rates.length - 1]; // unknown at first
  const paused = count("paused");
  const failed = runs.filter((r) => r.state !== "cancelled").reduce((n, r) => n + r.failed, 0);
  return html`<div class="runs-tiles" data-test="summary">
    <div class="runs-tile"><span>Running</span><b>${num(count("running") + count("loading"))}</b></div>
    <div class="runs-tile wide"><span>Items per second</span><b>${rate === undefined ? "–" : short(Math.round(rate))}</b><${Spark} values=${rates}/></div>
    <div class="runs-tile"><span>Paused</span><b class=${paused ? "is-warn" : ""}>${num(paused)}</b></div>
    <div class="runs-tile"><span>Failed items</span><b class=${failed ? "is-bad" : ""}>${short(failed)}</b></div>
  </div>`;
}

function Spark({ values }) {
  if (values.length < 3) return null;
  const max = Math.max(...values, 1);
  const points = values.map((v, i) => `${(i / (values.length - 1) * 120).toFixed(1)},${(29 - v / max * 26).toFixed(1)}`);
  return html`<svg class="runs-spark" viewBox="0 0 120 30" preserveAspectRatio="none" aria-hidden="true">
    <path class="area" d=${`M0,30 L${points.join(" L")} L120,30 Z`}/><path class="line" d=${"M" + points.join(" L")}/></svg>`;
}

// First is shown to a new user.
function First() {
  const at = location.origin === "http://127.0.0.1:8480" ? "" : " --url " + location.origin;
  const lines = [
    ["See which services listen", `tranche endpoints${at}`],
    ["Start a run over a file", `tranche run start --endpoint NAME --items customers.csv${at}`],
    ["Or try it all with a demo", "tranche demo"],
  ];
  return html`<${Card}><${Empty} icon="runs" title="No runs yet" test="no-runs">
    <p>A run asks an endpoint, or the steps of a plan, once for each item of a file. Start one here, or from a shell:</p>
    <div class="commands">${lines.map(([what, command]) => html`<div><span>${what}</span>
      <code>${command}</code><${Copy} text=${command}/></div>`)}</div>
    <${Start}/>
  <//><//>`;
}
