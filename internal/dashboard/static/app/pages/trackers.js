// Tracker batches: which are complete, and what is missing in the rest.
import { html } from "../html.js";
import {
  Badge, Button, Card, Copy, Empty, ErrorBox, Page, Progress, Search, Select, Skeleton, Table, Text, Tile, Time, confirm, toast, useLoad,
} from "../ui.js";
import { Link, setQuery } from "../router.js";
import { api, query as withQuery, segment } from "../api.js";
import { inert, num, plural, setting, shortId } from "../format.js";

const tones = { open: "info", sealed: "busy", completed: "ok", expired: "bad" };
const states = [["", "All states"], ["open", "Open"], ["sealed", "Sealed"], ["completed", "Completed"], ["expired", "Expired"]];
const shownRanges = 200;

/** Trackers is the page /trackers; ?id= shows one batch. */
export default function Trackers({ query }) {
  return query.id ? html`<${Batch} key=${query.id} id=${query.id}/>` : html`<${List} query=${query}/>`;
}

const at = (b) => "/trackers?id=" + encodeURIComponent(b.id);
const name = (b) => b.key || shortId(b.id);

function List({ query: { owner = "", state = "", after = "" } }) {
  const list = useLoad("/trackers" + withQuery({ owner, state, after }), [], { every: 3 });
  const batches = list.data?.batches || [];
  const filtered = owner || state || after;
  return html`<${Page} title="Trackers" test="trackers-page" subtitle="Whether all that another system has sent out is done">
    <div class="filterbar"><${Search} value=${owner} label="Owner" placeholder="Exact name of the owner" onChange=${(v) => setQuery({ owner: v, after: "" })}/>
      <${Select} label="State" value=${state} options=${states} onChange=${(v) => setQuery({ state: v, after: "" })} test="state"/></div>
    <${ErrorBox} error=${list.error} retry=${list.reload}/>
    ${!list.data && !list.error && html`<${Card}><${Skeleton} lines=${4}/><//>`}
    ${list.data && html`<${Card} flush label="Tracker batches"><${Table} caption="Tracker batches, newest first" test="trackers" rows=${batches}
      rowKey=${(b) => b.id} href=${at} columns=${columns} empty=${html`<${Nothing} filtered=${filtered}/>`}/><//>`}
    ${list.data?.next && html`<div class="plan-more"><${Button} small onClick=${() => setQuery({ after: list.data.next }, { replace: false })}>Older batches<//></div>`}
  <//>`;
}

const columns = [
  { key: "name", title: "Batch", class: "runs-name", render: (b) => html`<${Link} to=${at(b)}><${Text} max=${60}>${name(b)}<//><//>` },
  { key: "owner", title: "Owner", render: (b) => html`<${Text} max=${40}>${b.owner}<//>` },
  { key: "state", title: "State", render: (b) => html`<${Badge} tone=${tones[b.state]}>${b.state}<//>` },
  { key: "items", title: "Items", align: "right", render: (b) => html`<span class="num">${num(b.items)}</span>` },
  { key: "groups", title: "Open groups", align: "right", hide: "narrow", render: (b) => html`<span class="num">${num(b.open_groups)} of ${num(b.groups)}</span>` },
  { key: "active", title: "Active", align: "right", class: "nowrap", render: (b) => html`<${Time} at=${b.active_at}/>` },
];

function Nothing({ filtered }) {
  if (filtered) return html`<${Empty} icon="trackers" title="No batch fits"/>`;
  const command = "tranche tracker open --owner billing";
  return html`<${Empty} icon="trackers" title="No batches" test="no-trackers">
    <p>A system that fans out events asks here whether all of them are done: it opens a batch, adds items, and its workers acknowledge them.</p>
    <div class="commands"><div><code>${command}</code><${Copy} text=${command}/></div></div><//>`;
}

function Batch({ id }) {
  const path = "/trackers/" + segment(id);
  const { data: b, error, reload } = useLoad(`${path}?missing=${shownRanges}`, [], { every: 3 });
  const seal = async () => {
    const done = await confirm({
      title: "Seal the batch?", action: "Seal", test: "seal-dialog", act: () => api.post(path + "/seal", {}),
      body: "It takes no more items, and completes with the last acknowledgement.",
    });
    if (!done) return;
    toast(done.completed ? "It was sealed, and is complete" : "It is sealed");
    reload();
  };
  const remove = async () => {
    const done = await confirm({
      title: "Delete the batch?", action: "Delete", danger: true, test: "delete-dialog", act: () => api.del(path),
      body: "Its completion is not reported: no event, no webhook.",
    });
    if (!done) return;
    toast("It is deleted");
    setQuery({ id: "" });
  };
  const actions = b && html`<${Button} kind="ghost" icon="trash" role="operator" label="Delete the batch" title="Delete the batch" onClick=${remove} test="delete"/>
    ${b.state === "open" && html`<${Button} role="operator" onClick=${seal} test="seal">Seal<//>`}`;
  return html`<${Page} title=${b ? name(b) : shortId(id)} crumbs=${[["Trackers", "/trackers"]]} test="tracker-page" actions=${actions}
      subtitle=${b && html`<${Badge} tone=${tones[b.state]} test="tracker-state">${b.state}<//> ${" "}of <${Text} max=${60}>${b.owner}<//>`}>
    <${ErrorBox} error=${error} retry=${reload}/>
    ${!b && !error && html`<${Card}><${Skeleton} lines=${5}/><//>`}
    ${b && html`<${Progress} done=${b.done} failed=${b.failed} total=${b.items} label="Acknowledged"/>
      <dl class="tiles"><${Tile} name="Items" value=${num(b.items)} note=${plural(b.groups, "group")}/><${Tile} name="Pending" value=${num(b.pending)} note=${`in ${plural(b.open_groups, "group")}`}/>
        <${Tile} name="Done" value=${num(b.done)}/><${Tile} name="Failed" value=${num(b.failed)} note=${codes(b)}/></dl>
      <div class="plan"><${Missing} batch=${b}/><${Facts} batch=${b}/></div>`}
  <//>`;
}

const codes = (b) => Object.entries(b.codes || {}).slice(0, 3).map(([code, n]) => `${inert(code, 30)} ${num(n)}`).join(", ");

function Missing({ batch: b }) {
  if (b.pending === 0) return html`<${Card} title="Missing"><p class="muted">Nothing is pending.</p><//>`;
  const ranges = b.missing || [];
  return html`<${Card} title="Missing" test="missing" actions=${html`<${Copy} text=${ranges.join("\n")} label="Copy the ranges"/>`}>
    <p class="muted">Group, and the first and last index in it${ranges.length >= shownRanges && `; the first ${num(shownRanges)} ranges, tranche tracker missing lists all`}.</p>
    <p class="ranges">${ranges.map((r) => html`<code key=${r}>${inert(r, 60)}</code> `)}</p><//>`;
}

function Facts({ batch: b }) {
  const hook = b.webhook;
  return html`<${Card} title="Batch"><dl class="facts">
    <div><dt>id</dt><dd><code>${inert(b.id)}</code> <${Copy} text=${b.id} label="Copy the id"/></dd></div>
    ${b.key && html`<div><dt>key</dt><dd><${Text} max=${200}>${b.key}<//></dd></div>`}
    <div><dt>opened</dt><dd><${Time} at=${b.created_at}/> by <${Text} max=${60}>${b.created_by}<//></dd></div>
    <div><dt>active</dt><dd><${Time} at=${b.active_at}/></dd></div>
    ${b.sealed_at && html`<div><dt>sealed</dt><dd><${Time} at=${b.sealed_at}/></dd></div>`}
    ${b.completed_at && html`<div><dt>completed</dt><dd><${Time} at=${b.completed_at}/></dd></div>`}
    ${b.expired_at && html`<div><dt>expired</dt><dd><${Time} at=${b.expired_at}/></dd></div>`}
    <div><dt>expires</dt><dd>open and idle for ${setting(b.open_idle)}, sealed and idle for ${setting(b.sealed_idle)}</dd></div>
    <div><dt>kept</dt><dd>${setting(b.keep)} after its end</dd></div>
    ${hook && html`<div><dt>webhook</dt><dd><${Text} max=${200}>${hook.url}<//> <span class="muted">${hook.state === "none" ? "waits for the end" : inert(hook.state.replace("_", " "))}${
      hook.attempts > 0 && `, ${plural(hook.attempts, "attempt")}`}${hook.error && `: ${inert(hook.error, 300)}`}</span></dd></div>`}
  </dl><//>`;
}
