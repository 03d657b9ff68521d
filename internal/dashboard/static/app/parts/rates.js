// Endpoints in numbers: rates, times per item, error shares and listeners.

import { html } from "../html.js";
import { Badge } from "../ui.js";
import { inert, num, percent, plural } from "../format.js";

export const rate = (perSecond) => (perSecond > 0 ? `${num(perSecond)}/s` : "–");

export function millis(ms) {
  if (!(ms > 0)) return "–";
  if (ms < 1) return `${Math.max(1, Math.round(ms * 1000))} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(1)} s`;
}

/** broken: the breaker is open, and what was measured before says nothing. */
export const broken = (e) => e.pace?.breaker === "open";

/** errorShare is the share of errors among answered items. */
export const errorShare = (e) => (e.items > 0 && !broken(e) ? percent(e.errors / e.items) : "–");

/** rateOf is the rate of an endpoint. */
export const rateOf = (e) => rate(broken(e) ? 0 : e.rate);

/** services are the listeners without their instances: [name, version, count]. */
export function services(listeners) {
  const found = new Map();
  for (const l of listeners) {
    const key = `${l.service} ${l.version}`;
    found.set(key, [l.service, l.version, (found.get(key)?.[2] ?? 0) + 1]);
  }
  return [...found.values()];
}

/** EndpointState is a badge that says whether an endpoint works. */
export function EndpointState({ endpoint: e }) {
  if (broken(e)) return html`<${Badge} tone="bad" icon="warn" title=${inert(e.pace.breaker_reason, 400)} test="breaker">breaker open<//>`;
  if (!isEndpoint(e)) return e.nodes?.length ? html`<${Badge} tone="ok" icon="check">${plural(e.nodes.length, "node")}<//>` : html`<${Badge}>no node<//>`;
  const waits = e.ready + e.in_flight + e.scheduled + e.backlog + e.calls_backlog > 0;
  if (e.listeners.length === 0) return html`<${Badge} tone=${waits ? "bad" : "plain"} icon=${waits ? "warn" : undefined} test="nobody">no listeners<//>`;
  const idle = e.listeners.filter((l) => l.state && l.state !== "listening").length;
  if (idle === e.listeners.length) return html`<${Badge} tone="warn" icon="pause">${inert(e.listeners[0].state, 20)}<//>`;
  return html`<${Badge} tone="ok" icon="check">listening<//>`;
}

/** isEndpoint distinguishes services' endpoints from work that nodes do themselves. */
export const isEndpoint = (e) => e.kind === "endpoint" || e.kind === "direct";
