// Actions of operators and nodes: who, when, and what changed.

import { html, useMemo, useState } from "../html.js";
import { Badge, Button, Card, Empty, ErrorBox, Page, Select, Skeleton, Text, Time } from "../ui.js";
import { Link, setQuery } from "../router.js";
import { query as params, segment } from "../api.js";
import { inert, shortId } from "../format.js";
import { changes } from "../parts/changes.js";
import { Diff } from "../parts/diff.js";
import { JsonView } from "../parts/jsonview.js";
import { More, usePages } from "../parts/paged.js";
import { Typed } from "../parts/typed.js";
import { endpointPath } from "../parts/target.js";
import { onEnter } from "../parts/enter.js";

const spans = [["", "At any time"], ["1", "Last hour"], ["24", "Last day"], ["168", "Last week"], ["720", "Last 30 days"]];
const actions = [
  "start", "open", "add", "seal", "rerun", "reset", "correct", "accept", "accept_withdraw", "set", "pause", "resume", "approve", "cancel", "note", "delete", "erase",
  "endpoint_set", "streams_set", "plan_apply", "plan_delete", "schedule_apply", "schedule_pause", "schedule_resume",
  "schedule_run_now", "schedule_delete", "collector_apply", "collector_pause", "collector_resume", "collector_drain",
  "collector_requeue", "collector_drop", "collector_delete", "tracker_open", "tracker_seal", "tracker_delete",
  "alert_apply", "alert_pause", "alert_resume", "alert_test", "alert_delete", "health_mute", "health_ack", "health_clear", "retention_set", "retention_run", "dead_letter_requeue", "dead_letter_drop", "token_create", "token_rotate", "token_revoke",
  "act_ask", "act_reject", "namespace_set", "namespace_delete",
  "login", "login_failed", "request_refused", "read", "logout", "session_revoke", "session_end",
];
const tones = {
  cancel: "bad", delete: "bad", erase: "bad", dead_letter_drop: "bad", plan_delete: "bad", schedule_delete: "bad", collector_drop: "bad",
  collector_delete: "bad", tracker_delete: "bad", alert_delete: "bad", token_revoke: "bad", session_revoke: "bad", session_end: "warn", login_failed: "warn", request_refused: "warn", pause: "warn", schedule_pause: "warn",
  collector_pause: "warn", alert_pause: "warn", health_mute: "warn", reset: "warn", rerun: "info", start: "ok", resume: "ok", schedule_resume: "ok",
  collector_resume: "ok", alert_resume: "ok", approve: "ok",
};
const filters = ["run", "actor", "action", "since"];

/** Audit is the page /audit. Its query has the filters: run, actor, action, since (hours). */
export default function Audit({ query }) {
  const since = useMemo(() => (Number(query.since) > 0 ? new Date(Date.now() - query.since * 3600e3).toISOString() : ""), [query.since]);
  const pathOf = (before) => `/audit${params({ run: query.run, actor: query.actor, action: query.action, since, before, limit: 50 })}`;
  const pages = usePages(pathOf, (d) => d.entries ?? [], (e) => e.id, [], { every: 5 });
  const any = filters.some((f) => query[f]);
  return html`<${Page} title="Audit" subtitle="Every change: who made it, when, and the previous value" test="audit-page">
    <div class="filterbar" role="group" aria-label="Filters">
      <${Typed} label="Run" placeholder="Run: id, name or last" value=${query.run} onChange=${(run) => setQuery({ run })} search test="filter-run" />
      <${Typed} label="Who" placeholder="Who" value=${query.actor} onChange=${(actor) => setQuery({ actor })} test="filter-actor" />
      <${Select} label="Action" value=${query.action ?? ""} test="filter-action" onChange=${(action) => setQuery({ action })}
        options=${[["", "Every action"], ...[...new Set([...actions, query.action].filter(Boolean))].map((a) => [a, a.replaceAll("_", " ")])]} />
      <${Select} label="Since" value=${query.since ?? ""} options=${spans} test="filter-since" onChange=${(v) => setQuery({ since: v })} />
      ${any && html`<${Button} small kind="ghost" icon="cross" test="clear" onClick=${() => setQuery(Object.fromEntries(filters.map((f) => [f, ""])))}>Clear<//>`}
    </div>
    <${ErrorBox} error=${pages.error} retry=${pages.reload} />
    <${Card} flush>
      ${!pages.rows && !pages.error && html`<div class="pad"><${Skeleton} lines=${8} /></div>`}
      ${pages.rows?.length === 0 && html`<${Empty} icon="audit" title=${pages.more ? "None among the newest 20,000 of all namespaces" : any ? "There are no such entries" : "Nothing was done yet"} test="empty" />`}
      ${pages.rows?.length > 0 && html`<ol class="audit" data-rows data-test="audit">${byDay(pages.rows).map(
        ([day, entries]) => html`<li class="audit-day" key=${day}><h2>${day}</h2></li>${entries.map((e) => html`<${Entry} key=${e.id} entry=${e} />`)}`,
      )}</ol>`}
    <//>
    <${More} pages=${pages} />
  <//>`;
}

function byDay(entries) {
  const days = new Map();
  const format = new Intl.DateTimeFormat("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" });
  for (const e of entries) {
    const day = format.format(new Date(e.at));
    if (!days.has(day)) days.set(day, []);
    days.get(day).push(e);
  }
  return [...days];
}

const shownChanges = 4;

function Entry({ entry: e }) {
  const [open, setOpen] = useState(false);
  const detail = Object.fromEntries(Object.entries(e.detail ?? {}).filter(
    ([name, v]) => v && JSON.stringify(v) !== JSON.stringify(e.after?.[name]),
  ));
  const count = changes(e.before, e.after).length;
  const extra = Object.keys(detail).length > 0;
  return html`<li class="audit-entry" data-row=${e.id} data-test="entry" tabindex="-1" onKeyDown=${onEnter(() => setOpen(!open))}>
    <span class="audit-time" title=${`entry ${e.id}`}><${Time} at=${e.at} mode="clock" /></span>
    <span class="audit-who">${e.actor === "tranche" ? html`<span class="muted" title="done by a node automatically">tranche</span>` : html`<button type="button" class="link" title="Only what this one did" onClick=${() => setQuery({ actor: e.actor })}><${Text} max=${40}>${e.actor}<//></button>`}</span>
    <span class="audit-what"><${Badge} tone=${tones[e.action] ?? "plain"}>${inert(e.action.replaceAll("_", " "), 40)}<//></span>
    <span class="audit-on"><${Subject} entry=${e} /></span>
    <div class="audit-change">
      ${count > 0 && html`<${Diff} before=${e.before} after=${e.after} limit=${open ? Infinity : shownChanges} onMore=${() => setOpen(true)} />`}
      ${extra && html`<${Diff} after=${detail} limit=${open ? Infinity : shownChanges} onMore=${() => setOpen(true)} />`}
      ${open && html`<button type="button" class="tool" onClick=${() => setOpen(false)}>Less</button>`}
      ${open && html`<details class="audit-raw"><summary>As JSON</summary><${JsonView} text=${JSON.stringify(e)} label="entry" /></details>`}
    </div>
  </li>`;
}

function Subject({ entry: e }) {
  if (e.run) return html`<${Link} to=${`/runs/${segment(e.run)}`} title=${e.run}>run <code>${shortId(e.run)}</code><//>`;
  if (!e.subject) return html`<span class="muted">–</span>`;
  if (e.action === "endpoint_set") return html`<${Link} to=${endpointPath(e.subject)}><${Text} max=${60}>${e.subject}<//><//>`;
  return html`<${Text} max=${60}>${e.subject}<//>`;
}
