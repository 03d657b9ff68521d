// The requests of a run in progress: holders, ages and deadlines.
import { html, useEffect, useState } from "../html.js";
import { query, segment } from "../api.js";
import { Badge, Button, Card, Empty, ErrorBox, Skeleton, Table, Text, Time, now, useLoad } from "../ui.js";
import { Link } from "../router.js";
import { duration, inert, num, plural, servedBy } from "../format.js";
import { causes } from "../parts/causes.js";
import { itemPath } from "../parts/itempath.js";
import { BLOCK } from "../heatmap/store.js";
import { ended } from "./head.js";

const PAGE = 10;
const EVERY = 3; // seconds

const kinds = [["out", "In progress", ["claimed", "sent"]], ["later", "To be retried", ["scheduled"]]];
const states = { claimed: ["plain", "being sent"], sent: ["plain", "queued"], handed: ["busy", "at a service"], scheduled: ["warn", "to be retried"] };

// A sent request is in the queue until a service takes it.
const stateOf = (s) => states[s.state === "sent" && s.delivered_at ? "handed" : s.state] ?? ["plain", inert(s.state)];

export function Slices({ run, step, onShow }) {
  const [kind, setKind] = useState("out");
  const [pages, setPages] = useState([""]);
  useEffect(() => setPages([""]), [kind, step, run.id]);
  const after = pages.at(-1);
  const path = `/runs/${segment(run.id)}/slices${query({ state: kinds.find(([name]) => name === kind)[2], after, limit: step ? 5 * PAGE : PAGE })}`;
  const { data, error, reload } = useLoad(path, [run.state], { every: ended(run) ? 0 : EVERY });
  const counts = data?.counts ?? {};
  const total = countOf(counts, kind);
  if (ended(run) && (!data || data.slices.length === 0) && countOf(counts, "out") + countOf(counts, "later") === 0) return null;
  const listed = (data?.slices ?? []).filter((s) => !step || s.step === step);
  return html`<${Card} title="Requests" flush test="slices" class="slices" actions=${html`<${Kinds} counts=${counts}
      kind=${kind} onKind=${setKind} />`}>
    <${ErrorBox} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} lines=${3} />`}
    ${data && listed.length === 0 && html`<${Empty}
        title=${kind === "later" ? "Nothing waits to be retried" : ended(run) ? "The run ended" : "No request is in flight"}>
      ${run.state === "paused" && html`<p>The run is paused.</p>`}
      ${kind === "out" && countOf(counts, "later") > 0 && html`<p>${plural(countOf(counts, "later"), "request")} will be sent again when their time comes.</p>`}<//>`}
    ${listed.length > 0 && html`<${Table} caption="Requests" rows=${listed} rowKey=${(s) => s.id}
        columns=${cells(run, onShow)} test="slices-table" />`}
    ${(pages.length > 1 || data?.next) && html`<div class="pager">
      <${Button} small disabled=${pages.length < 2} onClick=${() => setPages(pages.slice(0, -1))}>Back<//>
      <span class="muted">${plural(total, "request")}</span>
      <${Button} small disabled=${!data?.next} onClick=${() => setPages([...pages, data.next])}>More<//></div>`}
  <//>`;
}

const countOf = (counts, kind) => kinds.find(([name]) => name === kind)[2].reduce((n, state) => n + (counts[state] ?? 0), 0);

function Kinds({ counts, kind, onKind }) {
  return html`<div class="chips" role="group" aria-label="Which requests">${kinds.map(([name, text]) => html`
    <button type="button" class="chip" key=${name} aria-pressed=${String(kind === name)} onClick=${() => onKind(name)}
        data-test=${"slices-" + name}>
      ${text} <span class="num">${num(countOf(counts, name))}</span></button>`)}</div>`;
}

function cells(run, onShow) {
  const several = run.steps.length > 1;
  return [
    { key: "items", title: "Items", render: (s) => html`<span class="slice-items"><button type="button"
        class="link-btn num" title="Show them on the map"
        onClick=${() => onShow([s.block * BLOCK, s.block * BLOCK + BLOCK - 1], s.step)}>${num(s.remaining)}</button>${
      s.remaining < s.items && html`<span
          class="muted"> of ${num(s.items)}</span>`}${s.first_key !== undefined && html`<span
          class="muted">, from <${Link} to=${itemPath(run.id, s.first_key)}><${Text}
          max=${24}>${s.first_key}<//><//></span>`}</span>` },
    several && { key: "step", title: "Step", render: (s) => html`<${Text} max=${30}>${s.step}<//>` },
    { key: "state", title: "State", render: (s) => html`<${Badge} tone=${stateOf(s)[0]}>${stateOf(s)[1]}<//>` },
    { key: "who", title: "Held by", render: (s) => html`<${Holder} slice=${s} />` },
    { key: "since", title: "For", align: "right", render: (s) => html`<${Since}
        at=${s.delivered_at ?? s.sent_at ?? s.created_at} />` },
    { key: "until", title: "Until", align: "right", render: (s) => html`<${Until} slice=${s} />` },
    { key: "attempt", title: "Attempt", align: "right", render: (s) => html`<span
        class="num">${s.attempt}</span>${s.cause && s.cause !== "ready" &&
      html` <span class="muted"><${Text} max=${60}>${causes[s.cause] ?? String(s.cause).replaceAll("_", " ")}<//></span>`}` },
  ].filter(Boolean);
}

function Holder({ slice: s }) {
  if (s.state === "scheduled") return html`<span class="muted">no one, until its time</span>`;
  if (s.service) return html`<${Text} max=${40}>${servedBy(s.service)}<//>`;
  if (!s.node) return html`<span class="muted">–</span>`;
  const words = s.state === "claimed" ? "node " : s.delivered_at ? "a service, for " : "the queue, from ";
  return html`<span><span class="muted">${words}</span><${Text} max=${30}>${s.node.host}<//> <span
      class="muted">${s.node.pid}</span></span>`;
}

function Since({ at }) {
  return html`<span class="num"
      title=${inert(at)}>${duration(Math.max(0, (now.value - new Date(at).getTime()) / 1000))}</span>`;
}

// Until is the time of the next automatic event: the deadline, or the next attempt.
function Until({ slice: s }) {
  const at = s.state === "scheduled" ? s.not_before : s.deadline;
  if (!at) return html`<span class="muted">–</span>`;
  const late = new Date(at).getTime() < now.value;
  if (late && s.state === "scheduled") return html`<span class="muted" title="Its time has come">due</span>`;
  return html`<span class=${late ? "warn-text" : ""}><${Time} at=${at} /></span>`;
}
