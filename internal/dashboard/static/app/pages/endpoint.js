// An endpoint: performance, listeners, settings, what nodes learned, and why its items wait.

import { html } from "../html.js";
import { Badge, Button, Card, Empty, ErrorBox, Page, Skeleton, Table, Text, Tile, Time, confirm, toast, useLoad } from "../ui.js";
import { api, segment } from "../api.js";
import { inert, num, plural } from "../format.js";
import { EndpointState, broken, errorShare, isEndpoint, millis, rate, rateOf, services } from "../parts/rates.js";
import { Sparkline, useHistory } from "../parts/sparkline.js";
import { Explanation } from "../parts/explain.js";
import { Controls } from "../parts/controls.js";

/** EndpointPage is the page /endpoint?name=…. */
export default function EndpointPage({ query: { name = "" } }) {
  const path = `/endpoints/${segment(name)}`;
  const found = useLoad(name && path, [], { every: 2 });
  const why = useLoad(name && `${path}/explain`, [], { every: 5 });
  const past = useLoad(name && "/audit?action=endpoint_set&limit=500", [found.data?.concurrency, found.data?.max_in_flight, found.data?.rate_limit]);
  const e = found.data;
  const history = useHistory(found.at, e ? [["rate", e.rate], ["p99", e.p99_millis], ["backlog", e.backlog + e.ready]] : []);
  const set = async (change, said) => {
    const answer = await api.post(`${path}/settings`, change);
    toast(said);
    found.reload();
    past.reload();
    return answer;
  };
  const waits = why.data?.groups?.length > 0; // then its explanation is long
  const changes = e && html`<${Changes} changes=${e.changes ?? []} />`;
  return html`<${Page} title=${name || "Endpoint"} crumbs=${[["Endpoints", "/endpoints"]]} actions=${e && html`<${EndpointState} endpoint=${e} />`}
    subtitle=${e && html`${e.kind === "endpoint" ? "" : `${e.kind}, `}${e.runs === 0 ? "no run uses it" : plural(e.runs, "run") + (e.runs === 1 ? " uses it" : " use it")}${services(e.listeners).map(([s, v, n]) => html`, ${n > 1 && `${n}× `}<${Text} max=${40}>${s}<//> <${Text} max=${30}>${v}<//>`)}`} test="endpoint-page">
    <${ErrorBox} error=${found.error} retry=${found.reload} />
    ${found.error?.status === 404 && html`<${Card}><${Empty} icon="endpoints" title="No service listens here, and no running run uses it"><p>This page fills when one does.</p><//><//>`}
    ${!name && html`<${Card}><${Empty} title="Which endpoint?" /><//>`}
    ${name && !e && !found.error && html`<${Card}><${Skeleton} lines=${6} /><//>`}
    ${e &&
    html`<${Breaker} endpoint=${e} set=${set} />
      <${Tiles} endpoint=${e} history=${history} />
      <div class="endpoint-columns">
        <div class="column"><${Controls} endpoint=${e} set=${set} audit=${past.data?.entries} />${waits && changes}</div>
        <div class="column"><${Card} title="What it is at" test="endpoint-explain">
          ${why.data ? html`<${Explanation} explanation=${why.data} several />` : why.error ? html`<p class="muted">Not known: ${inert(why.error.message, 200)}</p>` : html`<${Skeleton} lines=${3} />`}
        <//>${!waits && changes}</div>
      </div>
      <${Instances} endpoint=${e} />`}
  <//>`;
}

// Breaker shows an open breaker, with a button to close it for a while.
function Breaker({ endpoint: { name, pace: p }, set }) {
  if (!broken({ pace: p })) return null;
  const close = () =>
    confirm({
      title: "Close the breaker?",
      body: html`<p>Requests to <strong><${Text} max=${60}>${name}<//></strong> are sent again immediately, and for ten minutes the breaker stays closed despite failures. Items that fail in that time use up their attempts.</p>`,
      action: "Close it for 10 minutes",
      act: () => set({ breaker: "closed" }, "The breaker is closed for ten minutes"),
      test: "close-breaker",
    });
  return html`<section class="banner bad" aria-label="The breaker is open" data-test="breaker-banner">
    <div>
      <h2>The breaker is open${p.breaker_since && html`, <${Time} at=${p.breaker_since} mode="for" />`}</h2>
      <p><bdi>${inert(p.breaker_reason, 600)}</bdi></p>
      <p class="muted">Only occasional probes are sent: ${plural(p.probes ?? 0, "probe")} so far${p.probe_at && html`, the next <${Time} at=${p.probe_at} />`}. When one is answered, requests resume.</p>
    </div>
    <${Button} role="operator" icon="play" onClick=${close} test="close-breaker-button">Close for 10 min<//>
  </section>`;
}

function Tiles({ endpoint: e, history }) {
  const spark = (name, label) => history.get(name) && html`<${Sparkline} values=${history.get(name)} label=${label} width=${96} />`;
  return html`<dl class="tiles">
    <${Tile} name="Rate" value=${rateOf(e)} note=${broken(e) ? "only probes are sent" : spark("rate", "Rate")} />
    <${Tile} name="One item, p50" value=${millis(e.p50_millis)} />
    <${Tile} name="p99, the slowest" value=${millis(e.p99_millis)} note=${spark("p99", "p99, the slowest")} />
    <${Tile} name="Errors" value=${errorShare(e)} note=${broken(e) ? "whole requests fail" : e.items > 0 ? `${num(e.errors)} of ${num(e.items)}` : ""}
        tone=${e.errors > 0 || broken(e) ? "bad-text" : ""} />
    <${Tile} name="Ready items" value=${num(e.ready)} note=${[e.waiting > 0 && `${num(e.waiting)} wait`, e.scheduled > 0 && `${num(e.scheduled)} to be retried`].filter(Boolean).join(", ")} />
    <${Tile} name="In flight" value=${num(e.in_flight)} note=${e.pace ? plural(e.pace.requests_out, "request") : ""} />
    ${isEndpoint(e) && html`<${Tile} name="Backlog" value=${num(e.backlog)} note=${spark("backlog", "Backlog") || `${num(e.processing)} taken`} />
      <${Tile} name="Calls that wait" value=${num(e.calls_backlog)} note=${e.listeners.some((l) => l.lane) ? `${num(e.calls_processing)} taken, before the backlog` : "among the backlog"} />`}
  </dl>`;
}

function Instances({ endpoint: e }) {
  if (!isEndpoint(e)) {
    return html`<${Card} title="Nodes that do it">${e.nodes?.length ? html`<ul class="plain-list">${e.nodes.map((n) => html`<li><${Text} max=${80}>${n}<//></li>`)}</ul>` : html`<${Empty} title="No node that is alive does this" />`}<//>`;
  }
  const columns = [
    {
      key: "instance",
      title: "Instance",
      class: "head",
      render: (l) => html`<div><code title=${inert(l.instance, 100)}>${inert(l.instance, 100).slice(-8)}</code> <span class="muted"><${Text} max=${40}>${l.host ?? ""}<//></span>
        ${notes(l).map((n) => html`<p class="muted note" key=${n}>${n}</p>`)}</div>`,
    },
    { key: "state", title: "State", render: (l) => html`<${Badge} tone=${{ listening: "ok", waiting: "warn", draining: "info" }[l.state] ?? "plain"}>${inert(l.state || "not said", 20)}<//>` },
    { key: "service", title: "Service", render: (l) => html`<${Text} max=${40}>${l.service}<//> <span class="muted"><${Text} max=${30}>${l.version}<//></span>` },
    { key: "busy", title: "Busy", align: "right", render: (l) => html`<span class="num">${num(l.in_flight)}${l.concurrency > 0 && html`<span class="muted"> of ${num(l.concurrency)}</span>`}</span>` },
    { key: "rate", title: "Rate", align: "right", render: (l) => html`<span class="num">${rate(l.rate)}</span>` },
    { key: "p50", title: "p50", align: "right", hide: "narrow", render: (l) => html`<span class="num">${millis(l.p50_millis)}</span>` },
    { key: "p99", title: "p99", align: "right", render: (l) => html`<span class="num">${millis(l.p99_millis)}</span>` },
    { key: "items", title: "Items", align: "right", hide: "narrow", render: (l) => html`<span class="num">${num(l.items)}</span>` },
    { key: "errors", title: "Errors", align: "right", render: (l) => html`<span class=${"num" + (l.errors > 0 ? " bad-text" : "")}>${errorShare(l)}</span>` },
  ];
  return html`<${Card} title="Instances" flush class="cells" test="instances">
    <${Table} caption="Instances that listen" columns=${columns} rows=${e.listeners} rowKey=${(l) => l.instance} empty=${html`<${Empty} icon="endpoints" title="No service listens"><p>Requests wait until a service does.</p><//>`} />
  <//>`;
}

// notes lists an instance's peculiarities.
function notes(l) {
  const all = [];
  if (l.reason) all.push(l.state === "waiting" ? `waits: ${inert(l.reason, 300)}` : inert(l.reason, 300));
  for (const [n, what] of [[l.redelivered, "requests redelivered"], [l.given_up, "given up"], [l.dead, "dead-lettered"], [l.rebinds, "times its consumer was lost"]]) {
    if (n > 0) all.push(`${num(n)} ${what}`);
  }
  return all;
}

const changed = { in_flight: "in flight", rate: "rate", chunk: "chunk", chunk_cap: "chunk cap", breaker: "breaker" };

function Changes({ changes }) {
  return html`<${Card} title="What nodes changed" test="changes">
    ${changes.length === 0
      ? html`<p class="muted">Nodes have not had to change its pace.</p>`
      : html`<ol class="changes">${changes.map(
          (c, i) => html`<li key=${c.at + i}>
            <${Time} at=${c.at} mode="clock" />
            <span class="change-what">${changed[c.what] ?? inert(c.what, 30)}</span>
            <span class="change-to num"><del>${inert(c.before || "–", 24)}</del> → <ins>${inert(c.after || "–", 24)}</ins></span>
            <bdi class="change-why">${inert(c.reason, 400)}</bdi>
          </li>`,
        )}</ol>`}
  <//>`;
}
