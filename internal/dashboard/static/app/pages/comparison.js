// Compares two runs: new and fixed failures, different results, and where the time went.
import { html, useState } from "../html.js";
import {
  Button, Card, Empty, ErrorBox, Page, Select, Skeleton, Table, Text, useLoad,
} from "../ui.js";
import { BASE, api, query as parameters, segment } from "../api.js";
import { duration, inert, num, plural, shortId } from "../format.js";
import { Diff } from "../parts/diff.js";
import { itemApi, itemPath } from "../parts/itempath.js";
import { outcomes } from "../parts/outcomes.js";
import { Link, setQuery } from "../router.js";

const shown = 8; // differences of a result shown

const nameOf = (run) => run.name || `${run.plan} ${shortId(run.id)}`;

/** Comparison is the page /runs/{run}/comparison; its query: against, an earlier run. */
export default function Comparison({ params, query }) {
  const run = useLoad(`/runs/${segment(params.run)}`);
  const others = useLoad(run.data ? "/runs" + parameters({ before: run.data.id, limit: 100 }) : "");
  const like = (others.data?.runs ?? []).filter((r) => r.plan === run.data?.plan);
  const against = query.against || like[0]?.id || "";
  const report = useLoad(run.data && against ? `/runs/${segment(run.data.id)}/report` + parameters({ against, digests: "false" }) : "");
  const before = useLoad(against ? `/runs/${segment(against)}/report` + parameters({ digests: "false" }) : "");
  const name = run.data ? nameOf(run.data) : params.run;
  const other = useLoad(against && `/runs/${segment(against)}`);
  const otherName = other.data ? nameOf(other.data) : "";
  const error = run.error ?? others.error ?? report.error ?? before.error;
  const choices = [...new Map([...(other.data ? [other.data] : []), ...like, ...(others.data?.runs ?? [])].map((r) => [r.id, r])).values()];
  return html`<${Page} title=${`${name} against ${otherName || "…"}`} test="comparison-page"
      heading=${html`<${Text} max=${60}>${name}<//> <span class="muted">against</span> ${otherName
        ? html`<${Link} to=${`/runs/${segment(against)}`}><${Text} max=${60}>${otherName}<//><//>` : "…"}`}
      crumbs=${[["Runs", "/runs"], [name, `/runs/${segment(params.run)}`]]}
      actions=${choices.length > 0 && html`<${Select} label="Compare with" value=${against} test="against" onChange=${(id) => setQuery({ against: id }, { replace: false })}
        options=${choices.map((r) => [r.id, `${nameOf(r)}, ${r.created_at.slice(0, 10)}`])}/>`}>
    <${ErrorBox} error=${error} retry=${() => { run.reload(); report.reload(); }}/>
    ${others.data && !against && html`<${Card}><${Empty} icon="search" title="There is no earlier run to compare with"/><//>`}
    ${against && !error && !report.data && html`<${Card}><p class="muted">Every key of both is read.</p><${Skeleton} lines=${6}/><//>`}
    ${report.data?.against && html`<${Changes} run=${run.data.id} against=${against} other=${otherName} found=${report.data.against}/>`}
    ${report.data && before.data && html`<${Times} here=${report.data.steps} there=${before.data.steps} other=${otherName}/>`}
  <//>`;
}

function Changes({ run, against, other, found }) {
  const all = found.changes.filter((c) => c.items > 0);
  return html`${found.note && html`<p class="muted">${found.note}</p>`}
    <div class="tiles">${all.map((c) => {
      const [title, tone, meaning] = outcomes[c.change] ?? [c.change, "plain", ""];
      return html`<a class=${"tile tone-" + tone} key=${c.change} href=${"#" + c.change} data-test=${"change-" + c.change}
        onClick=${(e) => { e.preventDefault(); document.getElementById(c.change)?.scrollIntoView(); }}>
        <span class="muted" title=${meaning}>${title}</span><strong class="num">${num(c.items)}</strong></a>`;
    })}</div>
    ${all.filter((c) => c.examples?.length > 0).map((c) => html`<${Kind} key=${c.change} run=${run} against=${against} other=${other} change=${c}/>`)}`;
}

function Kind({ run, against, other, change: c }) {
  const [title, , meaning] = outcomes[c.change] ?? [c.change, "plain", ""];
  const list = `${BASE}/runs/${segment(run)}/comparison` + parameters({ against, change: c.change });
  const outcomeOf = (s) => (s ? html`${s.outcome}${s.error_code && html` <code><${Text} max=${60}>${s.error_code}<//></code>`}` : html`<span class="muted">–</span>`);
  const columns = [
    { key: "key", title: "Key", render: (d) => html`<${Link} to=${itemPath(d.here ? run : against, d.key)}><${Text} max=${60}>${d.key}<//><//>` },
    { key: "there", title: inert(other, 40) || "Then", render: (d) => outcomeOf(d.there) },
    { key: "here", title: "Now", render: (d) => outcomeOf(d.here) },
    c.change === "changed" && { key: "diff", title: "Difference", render: (d) => html`<${Result} run=${run} against=${against} item=${d.key}/>` },
  ].filter(Boolean);
  return html`<div id=${c.change}><${Card} flush title=${`${title}: ${plural(c.items, "item")}`} test=${"list-" + c.change}
      actions=${html`<span class="muted">${meaning}</span> <a class="btn small" href=${list} download=${c.change + ".ndjson"}>All of them</a>`}>
    <${Table} caption=${title} columns=${columns} rows=${c.examples} rowKey=${(d) => d.key}/>
    ${c.items > c.examples.length && html`<p class="muted card-note">and ${num(c.items - c.examples.length)} more</p>`}<//></div>`;
}

const results = (found) => Object.fromEntries((found.items?.[0]?.steps ?? []).filter((s) => s.result !== undefined)
  .map((s) => [s.name, s.result]));

// Result fetches both results on demand, because they may be large.
function Result({ run, against, item }) {
  const [open, setOpen] = useState(false);
  const [all, setAll] = useState(false);
  const { data, error } = useLoad(open && (({ signal }) => Promise.all([against, run].map((id) =>
    api.get(itemApi(id, item), { signal })))), [open, item]);
  if (!open) return html`<${Button} small onClick=${() => setOpen(true)} test="show-difference">Show<//>`;
  return html`<${ErrorBox} error=${error}/>${!data && !error && html`<${Skeleton} lines=${2}/>`}
    ${data && html`<${Diff} before=${results(data[0])} after=${results(data[1])} limit=${all ? Infinity : shown} onMore=${() => setAll(true)}/>`}`;
}

function Times({ here, there, other }) {
  const before = new Map(there.map((s) => [s.name, s]));
  const pair = (of, write) => (s) => {
    const [is, was] = [s[of], before.get(s.name)?.[of]];
    const times = was > 0 && is !== was ? html` <span class="muted">(${num(Number((is / was).toPrecision(2)))} ×)</span>` : "";
    return html`<span class="num"><span class="muted">${was === undefined ? "–" : write(was)} →</span> ${write(is)}${times}</span>`;
  };
  const column = (key, title, write) => ({ key, title, align: "right", render: pair(key, write) });
  return html`<${Card} flush title=${`Steps: ${inert(other, 40)} → now`} test="comparison-steps"><${Table} caption="Steps, then and now" rows=${here} rowKey=${(s) => s.name} columns=${[
    { key: "name", title: "Step", render: (s) => html`<${Text} max=${40}>${s.name}<//>` },
    column("done", "Done", num), column("failed", "Failed", num), column("requests", "Requests", num),
    column("p50_seconds", "p50", duration), column("p99_seconds", "p99", duration),
  ]}/><//>`;
}
