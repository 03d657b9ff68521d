// The nodes: the leader, late heartbeats, and what each node holds.

import { html } from "../html.js";
import { Badge, Card, Empty, ErrorBox, Page, Skeleton, Text, Time, useLoad } from "../ui.js";
import { Link } from "../router.js";
import { inert, num, plural } from "../format.js";

const tones = { live: "ok", late: "warn", dead: "bad", ended: "plain" };
const order = { live: 0, late: 1, dead: 2, ended: 3 };

export default function Nodes() {
  const { data, error, reload } = useLoad("/nodes", [], { every: 2 });
  const all = [...(data?.nodes ?? [])].sort((a, b) => order[a.state] - order[b.state] || Number(b.leader) - Number(a.leader));
  const here = all.filter((n) => n.state === "live" || n.state === "late");
  const gone = all.filter((n) => n.state === "dead" || n.state === "ended");
  return html`<${Page} title="Nodes" subtitle=${data && headline(here, data.leader)} test="nodes-page">
    <${ErrorBox} error=${error} retry=${reload} />
    ${!data && !error && html`<${Card}><${Skeleton} lines=${5} /><//>`}
    ${data && !data.leader && here.length > 0 && html`<section class="banner warn" data-test="no-leader"><div><h2>No node leads</h2>
      <p>Until one does, no one watches deadlines, schedules and retention. One of the nodes takes over within seconds of the end of the former lease.</p></div></section>`}
    ${data && all.length === 0 && html`<${Card}><${Empty} icon="nodes" title="No node is known" /><//>`}
    <div class="nodes">${here.map((n) => html`<${Node} key=${n.session} node=${n} leader=${data.leader} />`)}</div>
    ${gone.length > 0 &&
    html`<${Card} title="Gone" test="nodes-gone"><ul class="gone">${gone.map(
      (n) => html`<li key=${n.session}><${Badge} tone=${tones[n.state]}>${n.state}<//> <strong><${Text} max=${60}>${n.host}<//></strong> <span class="muted">pid ${n.pid}, <${Text} max=${30}>${n.version}<//></span>
        <span>${n.ended_at ? html`ended <${Time} at=${n.ended_at} />` : html`last heard of <${Time} at=${n.heartbeat_at} />`}</span>
        ${n.slices?.claimed > 0 && html`<span class="bad-text">${plural(n.slices.claimed, "request")} that it had claimed wait for the leader</span>`}
        ${n.slices?.sent > 0 && html`<span class="muted">${plural(n.slices.sent, "request")} that it sent ${n.slices.sent === 1 ? "is" : "are"} out; any node takes the answers</span>`}</li>`,
    )}</ul><//>`}
  <//>`;
}

const held = (n) => (n.slices?.claimed ?? 0) + (n.slices?.sent ?? 0);

function headline(here, leader) {
  const out = here.reduce((sum, n) => sum + held(n), 0);
  const leads = here.find((n) => n.leader);
  const parts = [plural(here.length, "node"), `${out === 0 ? "no request" : plural(out, "request")} in progress`];
  if (leader && leads) parts.push(`${inert(leads.host, 40)} leads`);
  return parts.join(", ");
}

function Node({ node: n, leader }) {
  const title = html`<${Text} max=${60}>${n.host}<//> <span class="muted">pid ${n.pid}</span>`;
  const badges = html`${n.leader && html`<${Badge} tone="info" icon="check" test="leader">leader<//>`} <${Badge} tone=${tones[n.state]} test="node-state">${n.state}<//>`;
  return html`<${Card} title=${title} label=${`node ${inert(n.host, 60)}`} actions=${badges} test="node" class="node">
    <dl class="facts">
      <div><dt>heartbeat</dt><dd class=${n.state === "late" ? "warn-text" : ""}><${Time} at=${n.heartbeat_at} />${n.state === "late" && html`; gone <${Time} at=${n.expires_at} /> without another`}</dd></div>
      <div><dt>up since</dt><dd><${Time} at=${n.started_at} /></dd></div>
      <div><dt>version</dt><dd><${Text} max=${60}>${n.version}<//></dd></div>
      <div><dt>session</dt><dd><code>${n.session}</code></dd></div>
      ${n.leader && leader && html`<div><dt title="The right to lead; an epoch is one leader's time">lease</dt><dd>epoch ${num(leader.epoch)}, until <${Time} at=${leader.expires_at} mode="clock" /></dd></div>`}
    </dl>
    <dl class="tiles small">
      <div class="tile"><dt>Requests claimed</dt><dd class="num">${num(n.slices?.claimed ?? 0)}</dd></div>
      <div class="tile"><dt>Requests sent</dt><dd class="num">${num(n.slices?.sent ?? 0)}</dd></div>
      <div class="tile"><dt>Items in them</dt><dd class="num">${num(n.items ?? 0)}</dd></div>
    </dl>
    ${n.runs?.length > 0
      ? html`<h3 class="list-head">What it holds</h3><ul class="holds">${n.runs.map(
          (r) => html`<li key=${r.id}><${Link} to=${`/runs/${r.id}`}><${Text} max=${60}>${r.name || r.id}<//><//><span class="num muted">${plural(r.slices, "request")}</span></li>`,
        )}</ul>`
      : html`<p class="muted">It holds nothing.</p>`}
    <${Stats} stats=${n.stats} />
  <//>`;
}

function Stats({ stats }) {
  const entries = Object.entries(stats ?? {}).filter(([, v]) => typeof v === "number" || typeof v === "string");
  if (entries.length === 0) return null;
  return html`<details class="node-stats"><summary>${plural(entries.length, "counter")}</summary>
    <dl class="facts">${entries.map(([name, v]) => html`<div key=${name}><dt>${inert(name.replaceAll("_", " "), 60)}</dt><dd class="num">${typeof v === "number" ? num(v) : inert(v, 100)}</dd></div>`)}</dl></details>`;
}
