// The live list of runs, newest first.
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import {
  Page, Card, Table, StateBadge, Progress, Time, ErrorBox, Empty, useLoad, Skeleton, Search, Button, ButtonLink, Menu,
  Copy, Text, Duration, Num, Select,
} from "../ui.js";
import { Link, go, namespace, setQuery } from "../router.js";
import { useKeys } from "../keys.js";
import { query as parameters } from "../api.js";
import { dueText, forecastText } from "../parts/forecast.js";
import { clock, num, percent, plural, shortId, short, timed } from "../format.js";
import { liveRuns } from "../live.js";
import { can } from "../session.js";
import { actionsOf, all, cancelSeveral, several } from "../runs/actions.js";
import { attention, merge, open, stuck } from "../runs/rows.js";
import { Strip, Views } from "../runs/parts.js";

const states = ["running", "paused", "loading", "completed", "cancelled"];
const orders = [["", "Newest first"], ["name", "By name"], ["items", "Most items"], ["failed", "Most failed"], ["time", "Longest"]];
const results = [["", "Any result"], ["failed", "With failures"], ["ok", "Without failures"]];
const ages = [["", "Any time"], ["1", "Last 24 hours"], ["7", "Last 7 days"], ["30", "Last 30 days"]];
const pageSize = 50;
const mostShown = 10; // of those that need attention, before the list

// since is when a number of days began, to the minute: the list is not another one each second.
const since = (days) => days && new Date(Math.floor(Date.now() / 6e4 - days * 1440) * 6e4).toISOString();

export default function Runs({ query }) {
  const { state = "", q = "", result = "", days = "", schedule = "", plan = "", sort = "", before = "" } = query;
  const needy = query.attention === "true";
  const live = liveRuns.value;
  const narrowed = Boolean(state || q || result || days || schedule || plan || needy);
  // The stream carries the first page without a filter. Everything else is polled.
  const plain = !narrowed && !sort && !before;
  const filter = narrowed || sort ? { state, q, result, since: since(days), schedule, plan, attention: needy || "", sort: needy ? "" : sort }
    : { fold: true };
  const { data, error, loading, reload } = useLoad("/runs" + parameters({ ...filter, before, limit: pageSize }), [],
    { every: live ? 5 : 2 });
  const urgent = useLoad(plain ? "/runs?attention=true&limit=50" : "", [], { every: live ? 10 : 2 });
  const [chosen, setChosen] = useState(new Set());
  const rates = useRef([]).current; // items per second of all runs, newest last
  const [, redraw] = useState(0);

  const first = useMemo(() => (plain ? attention(urgent.data?.runs, live) : []), [urgent.data, live, plain]);
  const shown = new Set(first.slice(0, mostShown).map((r) => r.id));
  const runs = useMemo(() => merge(data?.runs, live, plain, Boolean(data?.next)), [data, live]);
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
  const none = runs && runs.length === 0 && plain && first.length === 0;
  const reset = () => change({ state: "", q: "", result: "", days: "", schedule: "", plan: "", attention: "" });
  const list = (rows) => html`<${List} runs=${rows} chosen=${chosen} onChoose=${setChosen} reset=${reset} sort=${sort}
    onSort=${needy ? undefined : (by) => change({ sort: by === sort || by === "newest" ? "" : by })}/>`;
  const one = (name, value) => value && html`<${Button} small icon="cross" test=${"only-" + name} label=${`Show all runs, not only ${name} ${value}`}
    onClick=${() => change({ [name]: "" })}>${name} <${Text} max=${40}>${value}<//><//>`;
  return html`<${Page} title="Runs" test="runs-page" actions=${html`
      ${!none && html`<${Menu} label="All runs" test="all-runs" items=${[
        { label: "Pause all…", icon: "pause", role: "operator", test: "pause-all", onClick: () => all("pause", active) },
        { label: "Resume all…", icon: "play", role: "operator", test: "resume-all", onClick: () => all("resume") },
      ]}/>`}
      <${Start}/>`}>
    ${!none && runs && html`<${Summary} runs=${known || runs} rates=${rates}/>`}
    ${!none && html`<div class="filters">
      <div class="segments" role="group" aria-label="State">${["", "attention", ...states].map((s) => html`<button type="button" key=${s}
        aria-pressed=${String((needy ? "attention" : state) === s)} data-test=${"state-" + (s || "all")}
        onClick=${() => change({ attention: s === "attention" || "", state: s === "attention" ? "" : s })}>${s === "attention" ? html`<i class="dot paused"></i>Needs attention`
          : s ? html`<i class=${"dot " + s}></i>${s[0].toUpperCase() + s.slice(1)}` : "All"}</button>`)}</div>
      <div class="row runs-narrow">
        ${one("schedule", schedule)}${one("plan", plan)}
        <${Select} label="Result" test="result" value=${result} options=${results} onChange=${(v) => change({ result: v })}/>
        <${Select} label="Started" test="days" value=${days} options=${ages} onChange=${(v) => change({ days: v })}/>
        ${!needy && html`<span class="runs-sort"><${Select} label="Order" test="sort" value=${sort} options=${orders} onChange=${(v) => change({ sort: v })}/></span>`}
        <${Search} value=${q} onChange=${(text) => change({ q: text })} label="Search runs"
          placeholder="Name, plan, source, ID, user"/>
        <${Views} here=${location.search}/>
      </div>
    </div>`}
    <${ErrorBox} error=${error} retry=${reload}/>
    ${!runs && !error && html`<${Card}><${Skeleton} lines=${6}/><//>`}
    ${none && html`<${First}/>`}
    <${Bulk} runs=${[...first, ...(runs || [])].filter((r, i, all) => chosen.has(r.id) && all.findIndex((o) => o.id === r.id) === i)}
      onNone=${() => setChosen(new Set())}/>
    ${runs && first.length > 0 && html`<${Card} flush title="Needs attention" test="attention" actions=${first.length > mostShown &&
      html`<${Link} to="/runs?attention=true">All ${num(first.length)}<//>`}>${list(first.slice(0, mostShown))}<//>`}
    ${runs && !none && !(first.length > 0 && runs.every((r) => shown.has(r.id))) && html`<${Card} flush label="Runs" title=${first.length > 0 ? "Others" : undefined}>${
      list(runs.filter((r) => !shown.has(r.id)))}<//>`}
    ${data && (before || data.next) && html`<nav class="pager" aria-label="Pages">
      ${before && html`<${Button} small onClick=${() => change({ before: "" })} icon="left" test="newest">First page<//>`}
      ${data.next && html`<${Button} small test="older" busy=${loading && !data}
        onClick=${() => change({ before: data.next })}>Next<//>`}</nav>`}
  <//>`;
}

function Start() {
  return can("operator") && html`<${ButtonLink} to="/start" kind="primary" icon="start" test="start">Start a run<//>`;
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

function List({ runs, reset, chosen, onChoose, sort, onSort }) {
  const toggle = (id) => onChoose((was) => {
    const next = new Set(was);
    if (!next.delete(id)) next.add(id);
    return next;
  });
  const columns = [
    { key: "choose", srTitle: "Choose", label: "", class: "runs-choose", render: (r) => html`<input type="checkbox"
      checked=${chosen.has(r.id)} aria-label=${"Choose " + (r.name || shortId(r.id))} data-test="choose" onChange=${() => toggle(r.id)}/>` },
    { key: "name", title: "Run", sort: "name", class: "runs-name", render: (r) => html`
      <${Link} to=${"/runs/" + r.id} data-test="run-link"><${Text} max=${90}>${r.name || r.plan}<//><//>
      <span class="under"><${Text} max=${50}>${r.plan}${r.plan_version ? "@" + r.plan_version : ""}<//> · ${
        r.namespace !== "default" && !namespace() ? r.namespace + " · " : ""}${shortId(r.id)}${r.generation > 1 ? html` · <span title=${"Run again: " + plural(r.generation - 1, "time")}>generation ${r.generation}</span>` : ""}</span>${
        r.past?.length > 1 && html`<span class="under row"><${Strip} runs=${r.past}/><${Link} to=${"/runs?schedule=" + encodeURIComponent(r.schedule)}
        data-test="of-schedule">all of <${Text} max=${40}>${r.schedule}<//><//></span>`}` },
    { key: "state", title: "State", class: "runs-state", render: (r) => html`<${StateBadge} state=${r.state}
      failed=${open(r)} of=${r.items} stuck=${stuck(r)}/><${Reason} run=${r}/>` },
    { key: "progress", title: "Items", sort: "items", class: "runs-progress", render: (r) => html`<div class="bar">
      <${Progress} done=${r.done} failed=${r.failed} total=${r.items} share=${r.progress} state=${r.state}
        label=${"Progress of " + (r.name || r.plan)}/>
      <span class="under"><b>${percent(r.progress)}</b> ${num(r.done + r.failed)} of ${num(r.items)}${
        r.state === "running" && r.rate > 0 && html` · <${Num} value=${Math.round(r.rate)} unit="/s"/>`}</span></div>` },
    { key: "failed", title: "Failed", sort: "failed", align: "right", render: (r) => (r.failed > 0
      ? html`<${Link} to=${`/runs/${r.id}/errors`} class=${open(r) > 0 ? "is-bad num" : "num"}>${num(r.failed)}<//>` : html`<span class="muted">0</span>`) },
    { key: "ends", title: "Time", sort: "time", label: "Time", align: "right", class: "nowrap", render: (r) => html`<${Took} run=${r}/>` },
    { key: "created_at", title: "Started", sort: "newest", align: "right", hide: "narrow", class: "nowrap", render: (r) => html`<${Time} at=${r.created_at}/>${
      r.generation > 1 && r.started_at && html`<span class="under">again <${Time} at=${r.started_at}/></span>`}` },
    { key: "menu", srTitle: "Actions", label: "", align: "right", class: "runs-menu", render: (r) => html`<${Menu} small kind="ghost"
      label=${"Actions for " + (r.name || shortId(r.id))} items=${actionsOf(r)} test="run-menu"/>` },
  ];
  return html`<${Table} caption="Runs" test="runs" sort=${sort || "newest"} onSort=${onSort} columns=${columns} rows=${runs} rowKey=${(r) => r.id}
    href=${(r) => "/runs/" + r.id} empty=${html`<${Empty} icon="search" title="No run matches" test="no-match">
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
  if (stuck(run)) {
    return html`<span class="under is-warn">nothing moves: <${Link} to=${`/runs/${run.id}`}>see why<//></span>`;
  }
  if (run.state === "completed" && run.failed > 0) return html`<span class="under">${open(run) > 0 ? percent(open(run) / run.items) + " failed" : "failures accepted"}</span>`;
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
    <div class="runs-tile wide"><span>Items/s</span><b>${rate === undefined ? "–" : short(Math.round(rate))}</b><${Spark} values=${rates}/></div>
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
