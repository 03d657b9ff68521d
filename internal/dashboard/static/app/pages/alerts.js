// Alerts: who is told what a person must see to, and what became of each message.
import { html } from "../html.js";
import {
  Badge, Button, Card, Copy, Empty, ErrorBox, Page, Skeleton, Table, Text, Time, confirm, toast, useLoad,
} from "../ui.js";
import { Link, setQuery } from "../router.js";
import { api, segment } from "../api.js";
import { inert, num, plural } from "../format.js";
import { Editor, Source } from "../plans/source.js";

const template = `# Who is told of what.
name: my-alert
when:
  runs: [paused, waits_for_approval, overdue]   # and completed, will_be_late
  health: warning         # conditions of at least this severity
to:
  email: {to: [ops@bank.example]}   # or webhook, slack, teams, command
quiet: {from: "22:00", to: "07:00", zone: Europe/Berlin}   # only what is critical
`;

const tones = { waiting: "info", delivered: "ok", given_up: "bad", dropped: "plain" };
const severities = { critical: "bad", warning: "warn", info: "info" };

/** Alerts is the page /alerts; with ?name= it is about one. */
export default function Alerts({ query: { name = "", edit = "" } }) {
  const list = useLoad("/alerts", [], { every: 3 });
  const applied = (answer) => {
    toast(answer.unchanged ? `${answer.name} was so before; nothing was done` : `${answer.name} is version ${answer.version} now`,
      { tone: answer.unchanged ? "info" : "ok" });
    list.reload();
    setQuery({ name: answer.name, edit: "" });
  };
  if (edit === "new") {
    return html`<${Page} title="New alert" crumbs=${[["Alerts", "/alerts"]]}><${Card} flush label="New alert"><${Editor} kind="alert"
      note="It tells what holds already." source=${template} onApplied=${applied} onCancel=${() => setQuery({ edit: "" })}/><//><//>`;
  }
  if (name) return html`<${Alert} key=${name} name=${name} editing=${edit === "1"} onApplied=${applied} reload=${list.reload}/>`;
  return html`<${Page} title="Alerts" test="alerts-page" actions=${html`<${Button} kind="primary" icon="start" role="operator" test="new-alert"
      onClick=${() => setQuery({ edit: "new" }, { replace: false })}>New alert<//>`}>
    <${ErrorBox} error=${list.error} retry=${list.reload}/>
    ${!list.data && !list.error && html`<${Card}><${Skeleton} lines=${4}/><//>`}
    ${list.data && html`<${Card} flush label="Alerts"><${Table} caption="Alerts" test="alerts" rows=${list.data.alerts || []}
      rowKey=${(a) => a.name} href=${at} columns=${columns} empty=${html`<${Nothing}/>`}/><//>`}
  <//>`;
}

const at = (a) => "/alerts?name=" + encodeURIComponent(a.name);

// words of a rule: of what it tells, and by what.
const tells = ({ when }) => [...(when.runs || []).map((change) => "runs " + change.replaceAll("_", " ")), ...(when.health ? [`health: ${when.health}`] : [])].join(", ");
const by = (spec) => Object.keys(spec.to || {})[0] || "";

const columns = [
  { key: "name", title: "Alert", class: "runs-name", render: (a) => html`<${Link} to=${at(a)}><${Text} max=${60}>${a.name}<//><//>` },
  { key: "when", title: "Tells of", render: (a) => html`<${Text} max=${120}>${tells(a.spec)}<//>` },
  { key: "to", title: "By", hide: "narrow", render: (a) => html`<${Text} max=${20}>${by(a.spec)}<//>` },
  { key: "state", title: "State", render: (a) => html`<${State} of=${a}/>` },
  { key: "holding", title: "Holding", align: "right", hide: "narrow", render: (a) => html`<span class="num">${num(a.holding)}</span>` },
  { key: "told", title: "Last told", align: "right", class: "nowrap", render: (a) => (a.told_at ? html`<${Time} at=${a.told_at}/>` : html`<span class="muted">never</span>`) },
];

function State({ of: a }) {
  if (a.state === "paused") return html`<${Badge} tone="warn" icon="pause" test="alert-state">paused<//>`;
  if (a.failing_since) return html`<${Badge} tone="bad" icon="warn" test="alert-state">not delivered <${Time} at=${a.failing_since} mode="for"/><//>`;
  return html`<${Badge} tone="ok" test="alert-state">${a.waiting > 0 ? `${plural(a.waiting, "message")} on the way` : "active"}<//>`;
}

function Nothing() {
  const command = "tranche alert apply alert.yaml";
  return html`<${Empty} icon="bell" title="No alerts" test="no-alerts">
    <p>An alert tells people or programs when a run is stalled, is late or has completed, and when something here is not well.</p>
    <div class="commands"><div><code>${command}</code><${Copy} text=${command}/></div></div><//>`;
}

function Alert({ name, editing, onApplied, reload }) {
  const path = "/alerts/" + segment(name);
  const one = useLoad(path, [], { every: 3 });
  const told = useLoad(path + "/messages", [], { every: 3 });
  const a = one.data;
  const act = async (what, says) => {
    try {
      await api.post(`${path}/${what}`, {});
      toast(says);
      one.reload();
      told.reload();
      reload();
    } catch (err) {
      toast(err, { tone: "bad" });
    }
  };
  const remove = async () => {
    const done = await confirm({
      title: `Delete ${inert(name, 60)}?`, action: "Delete the alert", danger: true, test: "delete-dialog", act: () => api.del(path),
      body: "It tells nothing more, and messages that were not delivered are dropped.",
    });
    if (!done) return;
    toast(`${inert(name, 60)} is deleted`);
    reload();
    setQuery({ name: "" });
  };
  const paused = a?.state === "paused";
  const actions = a && !editing && html`<${Button} kind="ghost" icon="trash" role="operator" label="Delete the alert" title="Delete the alert" onClick=${remove} test="delete"/>
    <${Button} role="operator" onClick=${() => setQuery({ edit: "1" }, { replace: false })} test="edit">Change<//>
    <${Button} role="operator" icon=${paused ? "play" : "pause"} test=${paused ? "resume" : "pause"}
      onClick=${() => (paused ? act("resume", "It goes on, with what holds now") : act("pause", "It tells nothing until it is resumed"))}>${paused ? "Resume" : "Pause"}<//>
    <${Button} kind="primary" role="operator" icon="bell" onClick=${() => act("test", "A test is on its way; it appears in the list")} test="test">Test<//>`;
  return html`<${Page} title=${name} crumbs=${[["Alerts", "/alerts"]]} test="alert-page" actions=${actions}
      subtitle=${a && html`<${State} of=${a}/> tells of <${Text} max=${200}>${tells(a.spec)}<//>, by <${Text} max=${20}>${by(a.spec)}<//>, version ${num(a.version)}`}>
    <${ErrorBox} error=${one.error} retry=${one.reload}/>
    ${!a && !one.error && html`<${Card}><${Skeleton} lines=${8}/><//>`}
    ${a && editing && html`<${Card} flush label="Change"><${Editor} kind="alert" name=${name} note="What was told stays told." source=${a.source}
      onApplied=${onApplied} onCancel=${() => setQuery({ edit: "" })}/><//>`}
    ${a && !editing && html`${a.failing_since && html`<${Card} title="Its receiver cannot be told" test="alert-trouble"><p><${Text} max=${500}>${a.error}<//></p>
        <p class="muted">${plural(a.failures, "attempt")} failed, the first <${Time} at=${a.failing_since}/>. The next is made by itself; a test is made at once.</p><//>`}
      <${Messages} load=${told}/>
      <${Card} flush title="Source" actions=${html`<${Copy} text=${a.source} label="Copy the source"/>`}><${Source} kind="alert" text=${a.source}/><//>`}
  <//>`;
}

function Messages({ load }) {
  return html`<${Card} flush title="What it has told"><${ErrorBox} error=${load.error} retry=${load.reload}/>
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
