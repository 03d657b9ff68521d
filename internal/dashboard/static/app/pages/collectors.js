// Collectors: waiting operations, why they wait, and failed ones.
import { html } from "../html.js";
import {
  Badge, Button, Card, Empty, ErrorBox, Select, Table, Text, Tile, Time, confirm, toast, useLoad,
} from "../ui.js";
import { Link, setQuery } from "../router.js";
import { api, query as withQuery, segment } from "../api.js";
import { inert, num, plural } from "../format.js";
import { endpointPath } from "../parts/target.js";
import { Document, Documents, SourceCard, at, posting } from "../parts/documents.js";

const template = `# Operations wait here and go out in batches, one key at a time.
name: my-collector
endpoint: NAME        # of a service; see the Endpoints page
min_size: 50          # a key is flushed when this many of its operations wait,
max_age: 30s          # or when the oldest has waited so long
max_size: 500
rate: 50/m            # calls, over all keys
`;

const tones = { waiting: "info", backoff: "warn", parked: "bad" };
const states = [["", "All operations"], ["parked", "Parked"], ["backoff", "To be retried"], ["waiting", "Waiting"]];

/** Collectors is the page /collectors; ?name= shows one. */
export default function Collectors({ query }) {
  return html`<${Documents} kind="collector" icon="collectors" query=${query} every=${3} template=${template} note="Changes apply from the next flush." columns=${columns} One=${Collector}
    what="A collector stores small operations as they come, and hands them to a service in batches: one call for many, in order by their key."/>`;
}

const columns = [
  { key: "name", title: "Collector", class: "runs-name", render: (c) => html`<${Link} to=${at("collector")(c)}><${Text} max=${60}>${c.name}<//><//>` },
  { key: "endpoint", title: "Asks", render: (c) => html`<${Text} max=${40}>${c.spec.endpoint}<//>` },
  { key: "state", title: "State", render: (c) => html`<${State} of=${c}/>` },
  { key: "waiting", title: "Waiting", align: "right", render: (c) => html`<span class="num">${num(c.waiting)}</span>` },
  { key: "backoff", title: "Trying again", align: "right", hide: "narrow", render: (c) => html`<span class="num">${num(c.backoff)}</span>` },
  { key: "parked", title: "Parked", align: "right", render: (c) => html`<span class=${"num " + (c.parked > 0 ? "bad-text" : "")}>${num(c.parked)}</span>` },
  { key: "oldest", title: "Oldest", align: "right", class: "nowrap", render: (c) => html`<${Time} at=${c.oldest_at}/>` },
];

function State({ of: c }) {
  if (c.state === "paused") return html`<${Badge} tone="warn" icon="pause" test="collector-state">paused<//>`;
  if (c.failures > 0) return html`<${Badge} tone="bad" icon="warn" test="collector-state">flushes fail<//>`;
  return html`<${Badge} tone=${c.flushing > 0 ? "busy" : "ok"} test="collector-state">${c.flushing > 0 ? "flushing" : "active"}<//>`;
}

function Collector({ name, query: { state = "", after = "" }, editing, onApplied }) {
  const path = "/collectors/" + segment(name);
  const one = useLoad(path, [], { every: 3 });
  const ops = useLoad(path + "/ops" + withQuery({ state, after, limit: 50 }), [], { every: 3 });
  const c = one.data;
  const again = () => {
    one.reload();
    ops.reload();
  };
  const act = posting("collector", name, again);
  const choose = async (what, selection, title, body) => {
    const done = await confirm({
      title, action: what === "drop" ? "Give them up" : "Try again", danger: what === "drop", test: what + "-dialog", body,
      act: () => api.post(`${path}/${what}`, selection),
    });
    if (!done) return;
    toast(what === "drop" ? `${plural(done.dropped, "operation")} dropped` : `${plural(done.requeued, "operation")} to be retried`);
    again();
  };
  return html`<${Document} kind="collector" name=${name} load=${one} editing=${editing} onApplied=${onApplied} note="Changes apply from the next flush." act=${act}
      subtitle=${c && html`<${State} of=${c}/> asks <${Link} to=${endpointPath(c.spec.endpoint)}><${Text} max=${60}>${c.spec.endpoint}<//><//>, version ${c.version}`}
      pauses="Nothing is flushed until it is resumed" resumes="It continues" deletes="One with operations is not deleted: drain it, or drop them."
      more=${{ what: "drain", icon: "upload", label: "Drain", says: "All that waits is flushed now" }}>
    ${c && html`<${Tiles} of=${c}/>
      ${c.why?.length > 0 && html`<${Card} title="What keeps operations waiting" test="why"><ul class="reasons">${c.why.map((w) => html`<li key=${w.code}><${Text} max=${500}>${w.text}<//></li>`)}</ul><//>`}
      <${Ops} load=${ops} state=${state} parked=${c.parked} backoff=${c.backoff} choose=${choose}/><${SourceCard} kind="collector" text=${c.source}/>`}<//>`;
}

function Tiles({ of: c }) {
  const tile = (name, n, note) => html`<${Tile} name=${name} value=${num(n)} note=${note}/>`;
  return html`<dl class="tiles">${tile("Waiting", c.waiting, c.oldest_at && html`oldest <${Time} at=${c.oldest_at}/>`)}
    ${tile("Trying again", c.backoff)}${tile("Parked", c.parked)}
    ${tile("Keys", c.keys, `${num(c.due)} due`)}${tile("Flushing", c.flushing, `of ${num(c.spec.in_flight)} in flight`)}</dl>`;
}

function Ops({ load, state, parked, backoff, choose }) {
  const rows = load.data?.ops || [];
  const one = (op, what) => choose(what, { ids: [op.id], waiting: what === "drop" && op.state !== "parked" || undefined },
    what === "drop" ? `Give ${inert(op.id, 60)} up?` : `Try ${inert(op.id, 60)} again?`,
    what === "drop" ? "The operation is deleted, and not done." : "It regains all attempts, and joins the next flush of its key.");
  const columns = [
    { key: "id", title: "Operation", class: "runs-name", render: (op) => html`<${Text} max=${60} code>${op.id}<//><span class="under">key <${Text} max=${60}>${op.key}<//></span>` },
    { key: "state", title: "State", render: (op) => html`<${Badge} tone=${tones[op.state]}>${op.state === "backoff" ? "to be retried" : op.state}<//>${op.code &&
      html`<span class="under"><${Text} max=${40} code>${op.code}<//> <${Text} max=${160}>${op.message}<//></span>`}` },
    { key: "attempts", title: "Attempts", align: "right", hide: "narrow", render: (op) => html`<span class="num">${num(op.attempts)}</span>` },
    { key: "added", title: "Added", align: "right", class: "nowrap", render: (op) => html`<${Time} at=${op.added_at}/>` },
    { key: "do", srTitle: "Actions", label: "", align: "right", class: "nowrap", render: (op) => html`${op.state !== "waiting" && html`<${Button} small role="operator" test="requeue"
      label=${`Try ${inert(op.id, 60)} again`} onClick=${() => one(op, "requeue")}>Try again<//> `}<${Button} small kind="ghost" icon="trash" role="operator" test="drop"
      label=${`Give ${inert(op.id, 60)} up`} onClick=${() => one(op, "drop")}/>` },
  ];
  const actions = html`<${Select} label="State" value=${state} options=${states} onChange=${(v) => setQuery({ state: v, after: "" })} test="state"/>
    ${parked > 0 && html`<${Button} small role="operator" icon="repeat" test="requeue-all" onClick=${() => choose("requeue", { all: true },
      "Try all again?", "Parked operations, and those that wait to be retried, regain all attempts, and join the next flush of their keys.")}>Try all again<//>`}`;
  return html`<${Card} flush title="Operations" actions=${actions}><${ErrorBox} error=${load.error} retry=${load.reload}/>
    ${load.data && html`<${Table} caption="Operations, oldest first" test="ops" rows=${rows} rowKey=${(op) => op.number} columns=${columns}
      empty=${html`<${Empty} title=${state ? "None in this state" : "No operation waits"}/>`}/>`}
    ${load.data?.next > 0 && html`<div class="plan-more"><${Button} small onClick=${() => setQuery({ after: String(load.data.next) }, { replace: false })}>More<//></div>`}<//>`;
}
