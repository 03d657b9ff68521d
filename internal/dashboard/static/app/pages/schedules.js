// Schedules: next and past due times.
import { html, useEffect } from "../html.js";
import { Badge, Card, Empty, ErrorBox, Table, Text, Time, useLoad } from "../ui.js";
import { Link } from "../router.js";
import { segment } from "../api.js";
import { clock, inert, num, plural } from "../format.js";
import { times } from "../zone.js";
import { Document, Documents, SourceCard, at, posting } from "../parts/documents.js";

const template = `# When a plan is run, and over what.
name: my-schedule
cron: "30 22 * * 1-5"     # minute hour day month weekday
zone: Europe/Berlin
plan: my-plan
items:
  file: customers.csv     # in the directory of tranche serve --schedule-files
overlap: skip             # while the run before is in progress
misfire: once             # after a downtime
`;

const tones = {
  due: "info", queued: "info", starting: "busy", started: "ok", skipped: "plain", missed: "warn", failed: "bad",
};

/** Schedules is the page /schedules; ?name= shows one. */
export default function Schedules({ query }) {
  return html`<${Documents} kind="schedule" icon="clock" query=${query} every=${3} template=${template} note="Running runs continue." columns=${columns} One=${Schedule}
    what="A schedule starts a run by the clock: which plan, over which items, and what to do when the run before is not done."/>`;
}

const columns = [
  { key: "name", title: "Schedule", class: "runs-name", render: (s) => html`<${Link} to=${at("schedule")(s)}><${Text} max=${60}>${s.name}<//><//>` },
  { key: "when", title: "When", render: (s) => html`<code>${inert(s.when, 60)}</code> <span class="muted"><${Text} max=${40}>${s.zone}<//></span>` },
  { key: "plan", title: "Runs", render: (s) => html`<${Text} max=${60}>${s.plan}<//>` },
  { key: "state", title: "State", render: (s) => html`<${State} of=${s}/>` },
  { key: "last", title: "Last", hide: "narrow", render: (s) => (s.last ? html`<${Badge} tone=${tones[s.last.state]}>${s.last.state}<//> <${Time} at=${s.last.due_at}/>` : html`<span class="muted">never</span>`) },
  { key: "next", title: "Next", align: "right", class: "nowrap", render: (s) => html`<${Next} of=${s}/>` },
];

function State({ of: s }) {
  if (s.state === "paused") return html`<${Badge} tone="warn" icon="pause" test="schedule-state">paused<//>`;
  if (s.running > 0) return html`<${Badge} tone="busy" icon="play" test="schedule-state">${plural(s.running, "run")} in progress<//>`;
  return html`<${Badge} tone=${s.waiting > 0 ? "info" : "ok"} test="schedule-state">${s.waiting > 0 ? `${num(s.waiting)} waiting` : "active"}<//>`;
}

function Next({ of: s }) {
  if (s.state === "paused") return html`<span class="muted">not before it is resumed</span>`;
  return s.next_due ? html`<${Time} at=${s.next_due}/>` : html`<span class="muted">never again</span>`;
}

function Schedule({ name, editing, onApplied }) {
  const path = "/schedules/" + segment(name);
  const one = useLoad(path, [], { every: 3 });
  const s = one.data;
  times.own = s?.zone ?? ""; // before the parts of this page are shown
  useEffect(() => () => { times.own = ""; }, []);
  const next = useLoad(path + "/next?count=20", [s?.version, s?.state, s?.last_due]);
  const occurrences = useLoad(path + "/history", [], { every: 3 });
  const act = posting("schedule", name, () => [one, occurrences].forEach((load) => load.reload()));
  return html`<${Document} kind="schedule" name=${name} load=${one} editing=${editing} onApplied=${onApplied} note="Running runs continue." act=${act}
      subtitle=${s && html`<${State} of=${s}/> <code>${inert(s.when, 60)}</code> in <${Text} max=${60}>${s.zone}<//>, version ${s.version}`}
      pauses="Due times start nothing until it is resumed" resumes="It continues"
      deletes="It starts nothing more. Running runs continue, and its history is kept."
      more=${{ what: "run-now", icon: "play", label: "Run now", says: "The leader starts a run" }}>
    <div class="plan"><div class="column"><${Occurrences} load=${occurrences}/><${SourceCard} kind="schedule" text=${s?.source}/></div>
      <${Times} load=${next} paused=${s?.state === "paused"}/></div><//>`;
}

function Occurrences({ load }) {
  return html`<${Card} flush title="History"><${ErrorBox} error=${load.error} retry=${load.reload}/>
    ${load.data && html`<${Table} caption="Due times, newest first" test="occurrences" rows=${load.data.occurrences || []} rowKey=${(f) => f.due_at + f.kind}
      columns=${occurrenceColumns} empty=${html`<${Empty} title="None has come yet"/>`}/>`}<//>`;
}

/** Why explains an occurrence's state, and when it continues if known. */
function Why({ of: f }) {
  const start = new Date(f.start_at);
  const waits = !f.ended_at && start > new Date(f.due_at);
  const parts = [];
  if (f.reason) parts.push(html`<${Text} max=${200}>${f.reason}<//>`);
  else if (f.state === "starting" && f.began_at) parts.push(html`being loaded since ${clock(f.began_at, { date: true })}${f.attempts > 1 && `, attempt ${num(f.attempts)}`}`);
  else if (waits) parts.push(html`starts ${clock(f.start_at, { date: true })} (window or jitter)`);
  if (f.reason && waits && start > Date.now()) parts.push(html`not before ${clock(f.start_at, { date: true })}`);
  return parts.map((part) => html`<span class="under">${part}</span>`);
}

const occurrenceColumns = [
  { key: "due", title: "Due", class: "nowrap", render: (f) => html`${clock(f.due_at, { date: true })}${f.kind === "now" && html`<span class="under">requested by <${Text} max=${40}>${f.asked_by}<//></span>`}` },
  { key: "state", title: "State", render: (f) => html`<${Badge} tone=${tones[f.state]}>${f.state}<//><${Why} of=${f}/>` },
  { key: "run", title: "Run", align: "right", render: (f) => (f.run && f.run_state ? html`<${Link} to=${"/runs/" + f.run}>${inert(f.run_state)}<//>` : html`<span class="muted">${f.run ? "gone" : "–"}</span>`) },
];

function Times({ load, paused }) {
  const times = load.data?.times || [];
  return html`<${Card} title="Next times"><${ErrorBox} error=${load.error} retry=${load.reload}/>
    ${paused && html`<p class="muted">None of them while it is paused.</p>`}
    ${load.data && times.length === 0 && html`<p class="muted">It is never due again.</p>`}
    <ol class="times" data-test="times">${times.map((t) => html`<li key=${t.due}><span>${inert(t.local)}</span>${t.start !== t.due &&
      html`<span class="under">starts ${clock(t.start, { date: true })}</span>`}${t.done_by && html`<span class="under">done by ${clock(t.done_by, { date: true })}</span>`}</li>`)}</ol><//>`;
}
