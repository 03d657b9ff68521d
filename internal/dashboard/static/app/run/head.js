// The head of a run's page: state with reason, actions and numbers.
import { html, signal } from "../html.js";
import { Badge, Button, ButtonLink, Icon, Menu, Progress, StateBadge, Text, Time, confirm, now, toast } from "../ui.js";
import { BASE, api, segment } from "../api.js";
import { mayResume, resume } from "../runs/actions.js";
import { dueText, forecastText } from "../parts/forecast.js";
import { clock, duration, failedShare, inert, num, percent, plural, short, timed } from "../format.js";

export const ended = (run) => run.state === "completed" || run.state === "cancelled";

export const holds = { operator: "Paused by an operator", threshold: "Paused: too many items failed",
  fail_fast: "Paused: too many first outcomes failed", canary: "Canary waits for approval" };

export function Reason({ run }) {
  const { hold, open } = run;
  return html`
    ${hold && html`<p class=${"run-reason " + (hold.kind === "operator" ? "calm" : "warn")} data-test="hold">
      <${Icon} name="pause"/><span><strong>${holds[hold.kind] ?? "Held"}</strong>${hold.detail && html`: <${Text}
          max=${300}>${hold.detail}<//>`}
      <span class="muted"> · <${Time} at=${hold.since} mode="for" />${hold.by && hold.by !== "tranche" && html` by <${Text}
          max=${60}>${hold.by}<//>`}</span></span></p>`}
    ${open && html`<p class=${"run-reason " + (open.overdue ? "warn" : "calm")} data-test="open">
      <${Icon}
          name="upload"/><span><strong>${open.overdue ? "Overdue: it should have been sealed" : "Open: it takes items until it is sealed"}</strong>${open.seal_deadline &&
      html` · ${open.overdue ? "due" : "by"} <${Time} at=${open.seal_deadline} mode="clock" />`}<span
          class="muted"> · then: ${inert(open.on_overdue)}</span></span></p>`}`;
}

export function LiveBadge({ state }) {
  const [tone, text] = { live: ["ok", "Live"], connecting: ["warn", "Reconnecting…"], lost: ["bad", "Not connected"],
    waiting: ["warn", "Not live: close other windows"], polling: ["info", "Every 5 s"] }[state] ?? ["plain", state];
  return html`<span class=${"live-badge live-" + state} role="status" data-test="live" data-state=${state}>
    <${Badge} tone=${tone}><i class="live-dot"></i>${text}<//></span>`;
}

export function Away({ database }) {
  if (!database) return null;
  return html`<p class="run-reason warn" role="alert" data-test="database"><${Icon}
      name="warn"/><span><strong>PostgreSQL does not answer</strong>
    <${Time} at=${database.since} mode="for" />. What is shown may be out of date.${database.detail && html` <${Text}
        class="muted" max=${200}>${database.detail}<//>`}</span></p>`;
}

export function Actions({ run, onRerun, onReport }) {
  const act = (name) => async () => {
    try {
      await api.post(`/runs/${segment(run.id)}/${name}`, {});
      toast({ pause: "Paused: nothing more is sent", seal: "Sealed" }[name]);
    } catch (err) {
      toast(err, { tone: "bad" });
    }
  };
  const over = ended(run);
  const paused = run.state === "paused";
  const failing = paused && ["fail_fast", "threshold"].includes(run.hold?.kind); // actions that change nothing come first
  const errors = run.failed > 0 && html`<${ButtonLink} kind=${failing ? "primary" : ""} to=${`/runs/${segment(run.id)}/errors`} icon="warn"
        test="errors">${failing ? "What failed" : "Errors"}<//>`;
  return html`
    ${failing && errors}
    ${run.open && html`<${Button} icon="check" role="operator" onClick=${act("seal")} test="seal"
        title="Close the run to new items">Seal<//>`}
    ${!over && !paused && html`<${Button} icon="pause" role="operator" onClick=${act("pause")} test="pause">Pause<//>`}
    ${mayResume(run) && !failing && html`<${Button} kind="primary" icon="play" role="operator"
        onClick=${() => resume(run)} test="resume">Resume<//>`}
    ${run.failed > 0 && run.state !== "cancelled" && html`<${Button} kind=${over ? "primary" : ""} icon="repeat" role="operator" onClick=${onRerun}
        test="rerun" title="Rerun the failed items">Rerun failed<//>`}
    ${failing ? html`<${Button} icon="play" role="operator" onClick=${() => resume(run)} test="resume">Resume…<//>` : errors}
    <${Menu} label="More" items=${menu(run, over, onReport)} test="more" />`;
}

function menu(run, over, onReport) {
  return [
    { label: "Report", icon: "file", onClick: onReport, test: "menu-report" },
    { label: "Compare with another run", icon: "copy", to: `/runs/${segment(run.id)}/comparison`, test: "menu-compare" },
    null,
    ...["csv", "ndjson", "parquet"].map((format) => ({
      label: `Export as ${format.toUpperCase()}`, icon: "download", onClick: () => download(run, { format }), test: `export-${format}`,
    })),
    { label: "Export what failed", icon: "download", onClick: () => download(run, { format: "csv", state: "failed" }), disabled: run.failed === 0, test: "export-failed" },
    !over && possible() && { label: awaited.value.has(run.id) ? "You will be notified" : "Notify me when it ends", icon: "bell",
      disabled: awaited.value.has(run.id), onClick: () => tell(run), test: "notify" },
    !over && null,
    !over && { label: "Cancel the run…", icon: "stop", danger: true, role: "operator", onClick: () => cancel(run), test: "cancel" },
  ];
}

async function tell(run) {
  if (await notify(run)) toast("You will be notified when it ends or waits for approval, while this tab is open");
  else toast("The browser does not allow notifications", { tone: "warn" });
}

// download makes the browser stream an export to a file; the page holds nothing.
function download(run, params) {
  const link = document.createElement("a");
  link.href = `${BASE}/runs/${segment(run.id)}/export?${new URLSearchParams(params)}`;
  link.download = `${(run.name || run.plan).replace(/[^\w.-]+/g, "_")}${params.state ? "-" + params.state : ""}.${params.format}`;
  document.body.append(link);
  link.click();
  link.remove();
}

function cancel(run) {
  const left = run.items - run.done - run.failed;
  return confirm({
    title: "Cancel this run?", danger: true, action: "Cancel the run",
    body: html`<p>${left > 0 ? `${plural(left, "item")} will stay without an outcome` : "It ends immediately"}; done items stay done.
      To continue it later: Resume.</p>`,
    act: async () => {
      const answer = await api.post(`/runs/${segment(run.id)}/cancel`, {});
      toast(`Cancelled: ${plural(answer.items, "item")} without an outcome`);
    },
  });
}

export function Numbers({ run }) {
  const left = run.items - run.done - run.failed;
  const inFlight = run.steps.reduce((n, s) => n + s.slices_in_flight, 0);
  const foretold = run.forecast ?? {};
  const ends = forecastText(run.forecast);
  return html`<section class="run-numbers" aria-label="Progress" data-test="numbers">
    <div class="run-progress">
      <div class="run-progress-head"><strong
          data-test="progress">${percent(run.progress)}</strong>
        <span class="muted">${run.steps.length > 1 && "of all parts, "}${num(run.done + run.failed)} of ${num(run.items)} items finished</span></div>
      <${Progress} share=${run.progress} failed=${run.failed} total=${run.items} label="Progress of the run"
          state=${run.state} />
    </div>
    <dl class="run-facts">
      ${fact("Failed", num(run.failed), failures(run), run.failed > (run.accepted ?? 0) ? "bad" : "", "failed")}
      ${fact(run.state === "cancelled" ? "No outcome" : "Left", short(left), run.settling > 0 && `${short(run.settling)} settling`, "", "left")}
      ${rateOf(run) !== null && fact("Rate", html`${short(rateOf(run))}<small>/s</small>`, ended(run) ? "on average" : run.steps.length > 1 && "parts of all steps", "", "rate")}
      ${ended(run) ? fact("Took", duration(run.seconds), timed(run), "", "took")
        : fact("Runs for", html`<${Elapsed} run=${run} />`, timed(run), "", "took")}
      ${!ended(run) && fact(foretold.then ? "Then takes" : "Ends", ends.value, ends.more, "", "ends")}
      ${run.done_by && fact("Done by", clock(run.done_by), dueText(run), run.at_risk ? "bad" : "", "done-by")}
      ${!ended(run) && fact("In flight", short(inFlight), "requests", "", "inflight")}
      ${run.generation > 1 && fact("Generation", run.generation, `run again ${run.generation === 2 ? "once" : `${num(run.generation - 1)} times`}`, "", "generation")}
    </dl>
    ${!ended(run) && foretold.bound_by && !foretold.then && html`<p class="muted" data-test="bound-by"><${Text} max=${300}>${foretold.bound_by}<//></p>`}
    ${!ended(run) && run.at_risk?.fix && html`<p class="muted" data-test="fix">Enough to meet the deadline: <${Text} max=${300}>${run.at_risk.fix.text}<//></p>`}
  </section>`;
}

// failures is the share of failed items, and how many of them are accepted.
function failures(run) {
  return run.failed > 0 && failedShare(run) + (run.accepted ? `, ${short(run.accepted)} accepted` : "");
}

// rateOf is the current rate, or of an ended run the average: items, because each counts once.
function rateOf(run) {
  if (!ended(run)) return run.rate < 10 ? Math.round(run.rate * 10) / 10 : Math.round(run.rate);
  if (run.generation > 1 || !(run.seconds > 0)) return null;
  return Math.round((run.done + run.failed) / run.seconds);
}

function fact(name, value, more, tone, test) {
  return html`<div class=${"fact " + tone}><dt>${name}</dt><dd data-test=${"fact-" + test}>${value}${more && html`<span
      class="fact-more">${more}</span>`}</dd></div>`;
}

// lasted is for how many seconds a run has lasted.
export const lasted = (run) => (run.state === "running"
  ? Math.max(run.seconds, (now.value - new Date(run.started_at).getTime()) / 1000) : run.seconds);

const Elapsed = ({ run }) => duration(lasted(run));

export function Warnings({ run }) {
  // The head already shows a pause.
  const warnings = run.warnings.filter((w) => !(run.hold && run.state === "paused" && /paused/i.test(w)));
  if (warnings.length === 0) return null;
  return html`<div role="status"><ul class="run-warnings" data-test="warnings">${warnings.map((w) => html`<li key=${w}>
    <${Icon} name="warn"/><${Text} max=${600}>${w[0].toUpperCase() + w.slice(1)}<//></li>`)}</ul></div>`;
}

// A system notification when a run ends or waits for a decision, even while the tab is hidden.
const EVERY = 15_000; // ms

// awaited are the runs to be notified of, as long as the tab is open.
const awaited = signal(new Set());

const possible = () => "Notification" in globalThis && Notification.permission !== "denied";

// notify reports the end or hold of a run. Resolves to false if the user denies permission.
async function notify(run) {
  if (await Notification.requestPermission() !== "granted") return false;
  awaited.value = new Set([...awaited.value, run.id]);
  const timer = setInterval(async () => {
    let now;
    try {
      now = await api.get(`/runs/${segment(run.id)}`);
    } catch {
      return; // temporarily unavailable
    }
    const over = now.state === "completed" || now.state === "cancelled";
    if (!over && !now.hold) return;
    clearInterval(timer);
    awaited.value = new Set([...awaited.value].filter((id) => id !== run.id));
    const note = new Notification(inert(now.name || now.plan, 80), { tag: run.id,
      body: over ? `${now.state}, ${num(now.failed)} failed` : `held: ${inert(now.hold.detail || now.hold.kind, 120)}` });
    note.onclick = () => {
      focus();
      note.close();
    };
  }, EVERY);
  return true;
}
