// A run's failures, grouped by error code and shape of the message, to rerun or accept.

import { html, useMemo, useState } from "../html.js";
import { Badge, Button, ButtonLink, Card, Empty, ErrorBox, Page, Search, Select, Skeleton, StateBadge, Text, Time, useLoad } from "../ui.js";
import { Link, setQuery } from "../router.js";
import { segment } from "../api.js";
import { failedShare, inert, num, percent, plural } from "../format.js";
import { RerunDialog } from "../parts/rerun.js";
import { ResetDialog } from "../parts/reset.js";
import { AcceptDialog } from "../parts/accept.js";
import { itemPath } from "../parts/itempath.js";
import { onEnter } from "../parts/enter.js";

/** Errors is the page /runs/{run}/errors. Its query has the filters: q, step, code, service, sort. */
export default function Errors({ params, query }) {
  const run = useLoad(`/runs/${segment(params.run)}`, [], { every: 5 });
  const found = useLoad(`/runs/${segment(params.run)}/errors`, [run.data?.generation, run.data?.state], {
    every: run.data?.state === "completed" || run.data?.state === "cancelled" ? 0 : 10, // grouping a million takes seconds
  });
  const [again, setAgain] = useState(null);
  const [accepting, setAccepting] = useState(null);
  const [resetting, setResetting] = useState(null);
  const [chosen, setChosen] = useState(new Set());
  const error = run.error ?? found.error;
  const name = run.data ? run.data.name || run.data.plan : params.run;
  const reload = () => {
    run.reload();
    found.reload();
  };
  const groups = found.data?.groups ?? [];
  const shown = useMemo(() => sorted(groups.filter((g) => fits(g, query)), query.sort), [groups, query]);
  const selected = shown.filter((g) => chosen.has(keyOf(g)));
  const total = found.data?.items ?? 0;
  const others = groups.filter((g) => !g.resets); // a rerun may help
  const all = others.length === groups.length ? { select: { failed: true }, items: total, what: "all that failed" }
    : { select: { groups: ids(others) }, items: sum(others), what: "what does not fail for a bad part" };
  const actions = html`${run.data && html`<${StateBadge} state=${run.data.state} failed=${run.data.failed - (run.data.accepted ?? 0)} />`}
    ${total > 0 && html`<${Button} icon="check" role="operator" disabled=${!run.data || run.data.accepted === run.data.failed} test="accept-failed" onClick=${() =>
      setAccepting({ select: { failed: true }, items: total - (run.data.accepted ?? 0), what: "all that failed" })}>Accept all…<//>`}
    <${Button} kind="primary" icon="repeat" role="operator" disabled=${!run.data || total === 0 || others.length === 0} test="rerun-failed"
      title=${others.length < groups.length ? "Leaves out what fails for a bad part: reset the step that made it" : ""}
      onClick=${() => setAgain(all)}>Rerun ${others.length < groups.length ? "the rest" : "all failed"}<//>`;
  return html`<${Page}
    title=${`Errors of ${name}`}
    heading=${html`Errors <span class="muted">of</span> <${Text} max=${60}>${name}<//>`}
    crumbs=${[["Runs", "/runs"], [name, `/runs/${segment(params.run)}`]]}
    subtitle=${found.data && headline(found.data, run.data)}
    actions=${actions}
    test="errors-page"
  >
    <${ErrorBox} error=${error} retry=${reload} />
    ${!found.data && !error && html`<${Card}><${Skeleton} lines=${6} /><//>`}
    ${found.data && groups.length === 0 && html`<${Nothing} run=${run.data} id=${params.run} />`}
    ${groups.length > 0 &&
    html`<${BySteps} steps=${found.data.by_step ?? []} chosen=${query.step} />
      <${Filters} groups=${groups} query=${query} />
      ${selected.length > 0 &&
      html`<div class="bulk" role="region" aria-label="Chosen groups" data-test="bulk">
        <span><strong>${plural(selected.length, "group")}</strong> of ${plural(sum(selected), "item")}</span>
        <${Button} small kind="primary" icon="repeat" role="operator" disabled=${selected.some((g) => g.resets)} test="rerun-chosen" onClick=${() =>
          setAgain({ select: { groups: ids(selected) }, items: sum(selected), what: plural(selected.length, "group") + " of errors", group: selected.length === 1 ? selected[0] : null })}>Run them again<//>
        <${Button} small icon="check" role="operator" test="accept-chosen" disabled=${open(selected) === 0} onClick=${() =>
          setAccepting({ select: { groups: ids(selected) }, items: open(selected), what: plural(selected.length, "group") + " of errors" })}>Accept them…<//>
        <${Button} small kind="ghost" onClick=${() => setChosen(new Set())}>Choose none<//>
      </div>`}
      ${shown.length === 0
        ? html`<${Card}><${Empty} icon="filter" title="No group fits these filters"><p><${Button} small onClick=${() => setQuery({ q: "", step: "", code: "", service: "" })}>Show all<//></p><//><//>`
        : html`<ul class="groups" data-rows data-test="groups">
            ${shown.map(
              (g) => html`<${Group}
                key=${keyOf(g)}
                group=${g}
                run=${run.data}
                most=${Math.max(...groups.map(count))}
                chosen=${chosen.has(keyOf(g))}
                onChoose=${() => setChosen(toggled(chosen, keyOf(g)))}
                onAgain=${() => setAgain({ select: { groups: [g.id], step: g.step }, items: count(g), what: html`those with <code>${inert(g.code, 60)}</code>`, group: g })}
                onReset=${(step) => setResetting({ step, select: { groups: [g.id], failed_at: g.step }, what: plural(count(g), "item") })}
                onAccept=${(withdraw) => setAccepting({ select: { groups: [g.id], step: g.step }, items: withdraw ? g.accepted : open([g]), what: html`those with <code>${inert(g.code, 60)}</code>`, withdraw })}
              />`,
            )}
          </ul>`}
      ${found.data.more_groups > 0 && html`<p class="muted">and ${num(found.data.more_groups)} more groups of ${num(found.data.more_items)} items; an export of the run lists each item.</p>`}`}
    ${again && run.data && html`<${RerunDialog} run=${run.data} ...${again} onClose=${() => {
      setAgain(null);
      reload();
    }} />`}
    ${resetting && run.data && html`<${ResetDialog} run=${run.data.id} ...${resetting} onClose=${() => {
      setResetting(null);
      reload();
    }} />`}
    ${accepting && run.data && html`<${AcceptDialog} run=${run.data} ...${accepting} onClose=${() => {
      setAccepting(null);
      reload();
    }} />`}
  <//>`;
}

const count = (g) => g.count + (g.also ?? 0);
// open is the number of failures in groups that are not accepted.
const open = (groups) => groups.reduce((n, g) => n + count(g) - (g.accepted ?? 0), 0);
const sum = (groups) => groups.reduce((n, g) => n + count(g), 0);
const ids = (groups) => [...new Set(groups.map((g) => g.id))];
const keyOf = (g) => `${g.step}/${g.id}`;

function toggled(set, key) {
  const next = new Set(set);
  if (!next.delete(key)) next.add(key);
  return next;
}

function headline(found, run) {
  const groups = found.groups.length + (found.more_groups ?? 0);
  if (groups === 0) return "";
  const share = run ? ` (${failedShare(run)})` : "";
  const left = found.optional ? `; ${plural(found.optional, "part")} of optional steps` : "";
  const accepted = run?.accepted ? `, ${num(run.accepted)} of them accepted` : "";
  return html`${plural(found.items, "item")} failed${share}${accepted}, in ${plural(groups, "group")}${left}${found.at && html`; grouped <${Time} at=${found.at} />`}`;
}

function fits(g, { q, step, code, service }) {
  if (step && g.step !== step) return false;
  if (code && g.code !== code) return false;
  if (service && !(g.services ?? []).some((s) => nameOf(s) === service)) return false;
  if (!q) return true;
  const text = [g.id, g.code, g.shape, g.step, ...(g.services ?? []), ...g.examples.flatMap((e) => [e.key, e.message])];
  return q.toLowerCase().split(/\s+/).every((word) => text.some((t) => t.toLowerCase().includes(word)));
}

const nameOf = (service) => service.split(" ")[0];

// byName counts a group's items by service, without instances, most first.
function byName(g) {
  const found = new Map((g.services ?? []).map((s) => [nameOf(s), 0]));
  for (const { service, count: n } of g.by_service ?? []) found.set(nameOf(service), (found.get(nameOf(service)) ?? 0) + n);
  return [...found].sort((a, b) => b[1] - a[1]);
}

// BySteps shows the failures per step, if several steps have any.
function BySteps({ steps, chosen }) {
  if (steps.length < 2) return null;
  return html`<div class="tiles by-step" role="group" aria-label="Failed items by step">${steps.map(
    (s) => html`<button type="button" class="tile" key=${s.step} aria-pressed=${String(s.step === chosen)} data-test="by-step" onClick=${() => setQuery({ step: s.step === chosen ? "" : s.step })}>
      <span class="muted"><${Text} max=${40}>${s.step}<//>${s.optional && " (optional)"}</span><strong class="num">${num(s.count)}</strong></button>`,
  )}</div>`;
}

function sorted(groups, by) {
  const time = (t) => (t ? Date.parse(t) : 0);
  const orders = {
    last: (a, b) => time(b.last) - time(a.last),
    first: (a, b) => time(a.first) - time(b.first),
    code: (a, b) => a.code.localeCompare(b.code),
  };
  return [...groups].sort(orders[by] ?? ((a, b) => count(b) - count(a)));
}

function Filters({ groups, query }) {
  const options = (values, all) => [["", all], ...[...new Set(values)].sort().map((v) => [v, v])];
  const select = (name, values, all) =>
    new Set(values).size > 1 || query[name]
      ? html`<${Select} value=${query[name] ?? ""} label=${all} options=${options(values, all)} test=${`filter-${name}`} onChange=${(v) => setQuery({ [name]: v })} />`
      : null;
  return html`<div class="filterbar" role="group" aria-label="Filters">
    <${Search} value=${query.q} label="Search the errors" placeholder="Message, key, code…" onChange=${(q) => setQuery({ q })} />
    ${select("step", groups.map((g) => g.step), "All steps")}
    ${select("code", groups.map((g) => g.code), "All codes")}
    ${select("service", groups.flatMap((g) => (g.services ?? []).map(nameOf)), "All services")}
    <${Select} value=${query.sort ?? ""} label="Order" test="sort" onChange=${(sort) => setQuery({ sort })} options=${[["", "Most items first"], ["last", "Newest first"], ["first", "Oldest first"], ["code", "By code"]]} />
  </div>`;
}

const unfold = (row) => {
  const examples = row.querySelector("details");
  examples.open = !examples.open;
};

function Group({ group: g, run, most, chosen, onChoose, onAgain, onReset, onAccept }) {
  const id = `group-${g.id}-${g.step}`;
  const services = byName(g);
  return html`<li class=${"group" + (chosen ? " chosen" : "")} data-row=${keyOf(g)} data-test="group" tabindex="-1" aria-labelledby=${id} onKeyDown=${onEnter(unfold)}>
    <label class="group-check"><input type="checkbox" checked=${chosen} onChange=${onChoose} aria-label=${`Choose the group ${inert(g.code, 60)}`} /></label>
    <div class="group-count">
      <strong class="num">${num(count(g))}</strong>
      <svg class="group-bar" aria-hidden="true"><rect width="100%" height="100%" rx="2" /><rect class="fill" width=${`${Math.max(2, (100 * count(g)) / most)}%`} height="100%" rx="2" /></svg>
      <span class="muted" title="of all failures">${run?.failed ? percent(Math.min(1, count(g) / run.failed)) : ""}</span>
    </div>
    <div class="group-main">
      <h2 class="group-head" id=${id}><code class="group-code">${inert(g.code, 80)}</code>${g.optional && html`<${Badge} tone="info" title="Its items continued without it">optional<//>`}${g.accepted > 0 && html`<${Badge} tone="info" test="accepted">${open([g]) === 0 ? "accepted" : `${num(g.accepted)} accepted`}<//>`}</h2>
      <p class="group-shape"><bdi>${inert(g.shape, 600)}</bdi></p>
      <p class="group-origin">
        <span>step <strong><${Text} max=${40}>${g.step}<//></strong></span>
        ${g.first && html`<span>first <${Time} at=${g.first} /></span>`}
        ${g.last && html`<span>last <${Time} at=${g.last} /></span>`}
        ${services.map(([s, n]) => html`<span class="tag" key=${s}><${Text} max=${40}>${s}<//>${n > 0 && html` <span class="num muted">${num(n)}</span>`}</span>`)}
        ${g.also > 0 && html`<span>${num(g.also)} of them are counted with a step before, too</span>`}
      </p>
      <details class="group-examples">
        <summary>${plural(g.examples.length, "example")}${count(g) > g.examples.length && ` of ${num(count(g))}`}</summary>
        <ul>
          ${g.examples.map(
            (e) => html`<li key=${e.key}>
              <${Link} to=${itemPath(run?.id ?? "", e.key)}><${Text} max=${60}>${e.key}<//><//>
              <bdi class="example-text">${inert(e.message, 1000)}</bdi>
            </li>`,
          )}
        </ul>
        ${g.services?.length > 0 && html`<p class="muted group-instances">answered by <bdi>${inert(g.services.join(", "), 600)}</bdi></p>`}
      </details>
    </div>
    <div class="group-actions">${(g.resets ?? []).map((step) => html`<${Button} small icon="reload" role="operator" key=${step} test="reset-group"
          title="They fail for its part, which a rerun would give them again" onClick=${() => onReset(step)}>Reset ${inert(step, 40)}…<//>`)}
      ${!g.resets && html`<${Button} small icon="repeat" role="operator" test="rerun-group" onClick=${onAgain}>Run again…<//>`}
      ${open([g]) > 0 && html`<${Button} small icon="check" role="operator" test="accept-group" onClick=${() => onAccept(false)}>Accept…<//>`}
      ${g.accepted > 0 && html`<${Button} small kind="ghost" role="operator" test="withdraw-group" onClick=${() => onAccept(true)}>Withdraw…<//>`}</div>
  </li>`;
}

function Nothing({ run, id }) {
  const ended = run?.state === "completed";
  return html`<${Card}><${Empty} icon="check" title="No failed items" test="no-errors">
    <p>${ended ? "Every item of the run is done." : "Nothing has failed so far. Failures appear here automatically."}</p>
    <p><${ButtonLink} small to=${`/runs/${segment(id)}`}>Back to the run<//></p>
  <//><//>`;
}
