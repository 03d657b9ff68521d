// Alerts: rules, receivers, and the outcome of each message.
import { html } from "../html.js";
import { Badge, Card, Empty, ErrorBox, Table, Text, Time, useLoad } from "../ui.js";
import { Link } from "../router.js";
import { segment } from "../api.js";
import { num, plural } from "../format.js";
import { Document, Documents, SourceCard, at, posting } from "../parts/documents.js";

const template = `# Who is notified of what.
name: my-alert
when:
  runs: [paused, waits_for_approval, overdue]   # and completed, deadline_at_risk
  health: warning         # conditions of at least this severity
to:
  email: {to: [ops@bank.example]}   # or webhook, slack, teams, command
quiet: {from: "22:00", to: "07:00", zone: Europe/Berlin}   # only what is critical
`;

const tones = { waiting: "info", delivered: "ok", given_up: "bad", dropped: "plain" };
const severities = { critical: "bad", warning: "warn", info: "info" };

/** Alerts is the page /alerts; ?name= shows one. */
export default function Alerts({ query }) {
  return html`<${Documents} kind="alert" icon="bell" query=${query} every=${3} template=${template} note="It tells what holds already." columns=${columns} One=${Alert}
    what="An alert tells people or programs when a run is stalled, is late or has completed, and when something here is not well."/>`;
}

// What a rule reports, and by which channel.
const tells = ({ when }) => [...(when.runs || []).map((change) => "runs " + change.replaceAll("_", " ")), ...(when.health ? [`health: ${when.health}`] : [])].join(", ");
const by = (spec) => Object.keys(spec.to || {})[0] || "";

const columns = [
  { key: "name", title: "Alert", class: "runs-name", render: (a) => html`<${Link} to=${at("alert")(a)}><${Text} max=${60}>${a.name}<//><//>` },
  { key: "when", title: "Reports", render: (a) => html`<${Text} max=${120}>${tells(a.spec)}<//>` },
  { key: "to", title: "By", hide: "narrow", render: (a) => html`<${Text} max=${20}>${by(a.spec)}<//>` },
  { key: "state", title: "State", render: (a) => html`<${State} of=${a}/>` },
  { key: "holding", title: "Holding", align: "right", hide: "narrow", render: (a) => html`<span class="num">${num(a.holding)}</span>` },
  { key: "told", title: "Last notified", align: "right", class: "nowrap", render: (a) => (a.notified_at ? html`<${Time} at=${a.notified_at}/>` : html`<span class="muted">never</span>`) },
];

function State({ of: a }) {
  if (a.state === "paused") return html`<${Badge} tone="warn" icon="pause" test="alert-state">paused<//>`;
  if (a.failing_since) return html`<${Badge} tone="bad" icon="warn" test="alert-state">not delivered <${Time} at=${a.failing_since} mode="for"/><//>`;
  return html`<${Badge} tone="ok" test="alert-state">${a.waiting > 0 ? `${plural(a.waiting, "message")} on the way` : "active"}<//>`;
}

function Alert({ name, editing, onApplied }) {
  const path = "/alerts/" + segment(name);
  const one = useLoad(path, [], { every: 3 });
  const told = useLoad(path + "/messages", [], { every: 3 });
  const a = one.data;
  const act = posting("alert", name, () => [one, told].forEach((load) => load.reload()));
  return html`<${Document} kind="alert" name=${name} load=${one} editing=${editing} onApplied=${onApplied} note="Messages that were sent are not sent again." act=${act}
      subtitle=${a && html`<${State} of=${a}/> reports <${Text} max=${200}>${tells(a.spec)}<//>, by <${Text} max=${20}>${by(a.spec)}<//>, version ${a.version}`}
      pauses="It sends nothing until it is resumed" resumes="It resumes with what is active now"
      deletes="It tells nothing more, and messages that were not delivered are dropped."
      more=${{ what: "test", icon: "bell", label: "Test", says: "A test is on its way; it appears in the list" }}>
    ${a?.failing_since && html`<${Card} title="Its receiver cannot be notified" test="alert-trouble"><p><${Text} max=${500}>${a.error}<//></p>
        <p class="muted">${plural(a.failures, "attempt")} failed, the first <${Time} at=${a.failing_since}/>. The next is automatic; a test is immediate.</p><//>`}
    <${Messages} load=${told}/><${SourceCard} kind="alert" text=${a?.source}/><//>`;
}

function Messages({ load }) {
  return html`<${Card} flush title="Messages"><${ErrorBox} error=${load.error} retry=${load.reload}/>
    ${load.data && html`<${Table} caption="Messages, newest first" test="messages" rows=${load.data.messages || []} rowKey=${(m) => m.id}
      columns=${messageColumns} empty=${html`<${Empty} title="Nothing yet"/>`}/>`}<//>`;
}

const messageColumns = [
  { key: "made", title: "Made", class: "nowrap", render: (m) => html`<${Time} at=${m.made_at}/>` },
  { key: "severity", title: "Severity", hide: "narrow", render: (m) => html`<${Badge} tone=${severities[m.severity]}>${m.severity}<//>` },
  { key: "what", title: "What", render: (m) => html`<${Text} max=${200}>${m.body?.title || m.group}<//>${m.error && html`<span class="under"><${Text} max=${300}>${m.error}<//></span>`}` },
  { key: "state", title: "State", render: (m) => html`<${Badge} tone=${tones[m.state]} test="message-state">${m.state.replaceAll("_", " ")}<//>` },
  { key: "attempts", title: "Attempts", align: "right", hide: "narrow", render: (m) => html`<span class="num">${num(m.attempts)}</span>` },
];
