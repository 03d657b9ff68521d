// All endpoints: listeners, waiting requests and performance.

import { html } from "../html.js";
import { Badge, Card, Empty, ErrorBox, Page, Search, Skeleton, Table, Text, useLoad } from "../ui.js";
import { Link, setQuery } from "../router.js";
import { inert, num, plural } from "../format.js";
import { EndpointState, broken, errorShare, isEndpoint, millis, rateOf, services } from "../parts/rates.js";
import { Sparkline, useHistory } from "../parts/sparkline.js";
import { endpointPath } from "../parts/target.js";
import { Command } from "../parts/explain.js";

export default function Endpoints({ query }) {
  const { data, error, reload, at } = useLoad("/endpoints", [], { every: 2 });
  const all = data?.endpoints ?? [];
  const rates = useHistory(at, all.map((e) => [e.name, e.rate]));
  const shown = all.filter((e) => fits(e, query.q)).sort(byTrouble);
  return html`<${Page} title="Endpoints" subtitle=${data && headline(all)} test="endpoints-page">
    <${ErrorBox} error=${error} retry=${reload} />
    ${all.length > 3 && html`<div class="filterbar"><${Search} value=${query.q} label="Search endpoints" placeholder="Endpoint, service, version…" onChange=${(q) => setQuery({ q })} /></div>`}
    <${Card} flush class="cells">
      ${!data && !error && html`<div class="pad"><${Skeleton} lines=${6} /></div>`}
      ${data &&
      html`<${Table}
        caption="Endpoints"
        test="endpoints"
        rows=${shown}
        rowKey=${(e) => e.name}
        href=${(e) => endpointPath(e.name)}
        columns=${columns(rates)}
        empty=${html`<${Nobody} any=${all.length > 0} />`}
      />`}
    <//>
  <//>`;
}

function headline(all) {
  const open = all.filter((e) => broken(e)).length;
  const alone = all.filter((e) => isEndpoint(e) && e.listeners.length === 0).length;
  const parts = [plural(all.length, "endpoint"), plural(all.reduce((n, e) => n + e.listeners.length, 0), "instance")];
  if (open) parts.push(`${num(open)} with an open breaker`);
  if (alone) parts.push(`${num(alone)} that no service listens on`);
  return parts.join(", ");
}

function fits(e, q) {
  if (!q) return true;
  const text = [e.name, e.kind, ...e.listeners.flatMap((l) => [l.service, l.version, l.host ?? ""]), ...(e.nodes ?? [])];
  return q.toLowerCase().split(/\s+/).every((word) => text.some((t) => t.toLowerCase().includes(word)));
}

// Endpoints that need attention come first.
const trouble = (e) => (broken(e) ? 2 : isEndpoint(e) && e.listeners.length === 0 && e.runs > 0 ? 1 : 0);
const byTrouble = (a, b) => trouble(b) - trouble(a) || a.name.localeCompare(b.name);

const columns = (rates) => [
  {
    key: "name",
    title: "Endpoint",
    class: "head",
    render: (e) => html`<div class="endpoint-name">
      <${Link} to=${endpointPath(e.name)}><${Text} max=${60}>${e.name}<//><//>
      ${e.kind !== "endpoint" && html` <${Badge}>${e.kind}<//>`}
      ${broken(e) && html`<p class="bad-text clamp"><bdi>${inert(e.pace.breaker_reason, 300)}</bdi></p>`}
    </div>`,
  },
  { key: "state", title: "State", render: (e) => html`<${EndpointState} endpoint=${e} />` },
  { key: "who", title: "Services", class: "wide", hide: "narrow", render: (e) => html`<${Who} endpoint=${e} />` },
  { key: "ready", title: "Ready", align: "right", render: (e) => number(e.ready) },
  { key: "out", title: "In flight", align: "right", hide: "narrow", render: (e) => number(e.in_flight) },
  { key: "backlog", title: "Backlog", align: "right", render: (e) => number(e.backlog) },
  { key: "calls", title: "Calls", align: "right", hide: "narrow", render: (e) => number(e.calls_backlog) },
  {
    key: "rate",
    title: "Rate",
    align: "right",
    render: (e) => html`<span class="rate"><${Sparkline} values=${rates.get(e.name)} label=${`rate of ${inert(e.name, 60)}`} /> <span class="num">${rateOf(e)}</span></span>`,
  },
  { key: "p50", title: "p50", align: "right", hide: "narrow", render: (e) => html`<span class="num">${millis(e.p50_millis)}</span>` },
  { key: "p99", title: "p99", align: "right", render: (e) => html`<span class="num">${millis(e.p99_millis)}</span>` },
  {
    key: "errors",
    title: "Errors",
    align: "right",
    render: (e) => html`<span class=${"num" + (e.errors > 0 ? " bad-text" : "")} title=${`${num(e.errors)} of ${num(e.items)} items, since the listeners started`}>${errorShare(e)}</span>`,
  },
];

const number = (n) => html`<span class=${"num" + (n === 0 ? " faint" : "")}>${num(n)}</span>`;

function Who({ endpoint: e }) {
  if (!isEndpoint(e)) return html`<span class="muted">done by nodes</span>`;
  return html`<span class="tags">${services(e.listeners).slice(0, 4).map(
    ([name, version, count]) => html`<span class="tag" key=${name + version}>${count > 1 && html`<strong>${count}×</strong> `}<${Text} max=${30}>${name}<//> <span class="muted"><${Text} max=${20}>${version}<//></span></span>`,
  )}</span>`;
}

function Nobody({ any }) {
  if (any) return html`<${Empty} icon="filter" title="No endpoint fits" />`;
  return html`<${Empty} icon="endpoints" title="No service listens and no run waits for one">
    <p>Connect a service to NATS; it shows up here within seconds. One to try:</p>
    <${Command} text="go run github.com/tranchehq/tranche/examples/interest@latest" />
  <//>`;
}
