// The buttons for conditions of health, by kind, and muting, acknowledging and restoring them.

import { html, useId, useState } from "../html.js";
import { api, segment } from "../api.js";
import { Button, Dialog, ErrorBox, Field, Select, confirm, toast } from "../ui.js";
import { inert, num, plural } from "../format.js";

const run = (verb) => (c) => `/runs/${segment(c.subject)}/${verb}`;
const isRun = (c) => /^[0-9a-f-]{36}$/.test(c.subject);

/**
 * acts are the buttons of each kind: the API request, and the question to the user before it. can excludes conditions
 * to which a button does not apply.
 */
const acts = {
  failed_items: [{ label: "Rerun", icon: "repeat", path: run("rerun"), body: () => ({ failed: true }), can: (c) => isRun(c) && !c.resets, did: "is rerun",
    says: "All failed items are rerun. To try a sample first, open the run." }],
  run_held: [{ label: "Resume", icon: "play", path: run("resume"), did: "resumed", says: "Its items are sent again." }],
  run_over_limit: [{ label: "Resume", icon: "play", path: run("resume"), body: () => ({ max_failed: "none" }), did: "resumed", risky: true,
    says: "This lifts the limit of failed items for this run." }],
  run_fail_fast: [{ label: "Resume", icon: "play", path: run("resume"), did: "resumed", risky: true,
    says: "The rest is sent although too many first outcomes failed. The fail-fast check does not apply to this step again." }],
  run_approval: [{ label: "Approve", icon: "check", path: run("approve"), did: "approved", risky: true, says: "All items held back are sent." }],
  run_overdue: [{ label: "Seal", icon: "check", path: run("seal"), did: "sealed", says: "It takes no more items, and can complete." }],
  dead_letters: [{ label: "Requeue", icon: "repeat", path: () => "/dead-letters/requeue", body: (c) => ({ endpoint: c.subject }), did: "is requeued",
    says: "The letters are sent to their endpoints as new requests." }],
  collector_parked: [{ label: "Retry", icon: "repeat", path: (c) => `/collectors/${segment(c.subject)}/requeue`, body: () => ({ all: true }),
    did: "is retried", says: "All operations that are parked or to be retried regain all attempts, and are flushed again." }],
  schedule_failing: [{ label: "Start now", icon: "play", path: (c) => `/schedules/${segment(c.subject)}/run-now`, did: "is started",
    says: "Starts a run as at a due time." }],
};

/** risky kinds are decided one at a time, with their evidence. */
export const risky = (kind) => Boolean(acts[kind]?.some((act) => act.risky));

export function Acts({ conditions, onDone, small = false }) {
  return (acts[conditions[0].kind] ?? []).map((act) => {
    const about = conditions.filter(act.can ?? (() => true));
    if (act.risky && about.length > 1) return null;
    return about.length > 0 && html`<${Button} key=${act.label} small=${small} kind=${small || act.risky ? "" : "primary"} icon=${act.icon} role="operator"
      test=${small ? "act" : "act-all"} onClick=${() => perform(act, about, onDone)}>${act.label}${about.length > 1 && ` all ${num(about.length)}`}<//>`;
  });
}

async function perform(act, about, onDone) {
  const wrong = [];
  const done = await confirm({
    title: `${act.label}${about.length > 1 ? ` all ${num(about.length)}` : ""}?`, action: act.label, danger: act.risky, test: "act-dialog",
    body: html`<p><bdi>${inert(about.length > 1 ? plural(about.length, "condition") : about[0].title, 200)}</bdi></p>${act.risky && html`<p><bdi>${inert(about[0].detail, 500)}</bdi></p>`}<p>${act.says}</p>`,
    act: async () => {
      for (const c of about) {
        try {
          const answer = await api.post(act.path(c), act.body?.(c) ?? {});
          if (answer?.refused_total > 0) wrong.push(`${c.subject}: ${num(answer.refused_total)} refused`);
        } catch (err) {
          if (about.length === 1) throw err;
          wrong.push(`${c.title}: ${err.detail || err.message}`);
        }
      }
    },
  });
  if (!done) return;
  if (wrong.length > 0) toast(`${num(wrong.length)} of ${num(about.length)} not: ${inert(wrong[0], 200)}`, { tone: "bad" });
  else toast(about.length === 1 ? `${inert(about[0].subject, 60)} ${act.did}` : `${num(about.length)} of ${num(about.length)} done`);
  onDone();
}

/** said marks a condition or, without a subject, all of its kind. */
async function said(verb, names, onDone) {
  try {
    for (const name of [names].flat()) await api.post("/health/" + verb, name);
    onDone();
  } catch (err) {
    toast(err, { tone: "bad" });
  }
}

export const take = (name, onDone) => said("ack", name, onDone);
export const back = (name, onDone) => said("clear", name, onDone);

const times = [["1h", "For an hour"], ["8h", "For 8 hours"], ["24h", "For a day"], ["168h", "For a week"], ["", "Permanently"]];

/** MuteDialog mutes a condition or, without a subject, all of its kind. */
export function MuteDialog({ name, title, onDone, onClose }) {
  const [form, setForm] = useState({ time: "8h", reason: "" });
  const [error, setError] = useState(null);
  const id = useId();
  const submit = async (e) => {
    e.preventDefault();
    const { time, reason } = form;
    try {
      await api.post("/health/mute", { ...name, ...(time ? { for: time } : { until_worse: true }), reason });
      onClose();
      onDone();
    } catch (err) {
      setError(err);
    }
  };
  const footer = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" role="operator" type="submit" form=${id} test="mute-go">Mute<//>`;
  return html`<${Dialog} title="Mute" onClose=${onClose} footer=${footer} test="mute-dialog">
    <form id=${id} class="rerun" onSubmit=${submit}>
      <p><strong><bdi>${inert(title, 200)}</bdi></strong></p>
      <p class="muted">It does not count, and alerts do not tell it, until it gets worse or the time is up.</p>
      <${Field} label="How long"><${Select} value=${form.time} options=${times} test="mute-time" onChange=${(time) => setForm({ ...form, time })} /><//>
      <${Field} label="Why"><input required maxlength="500" value=${form.reason} data-test="mute-reason"
        onInput=${(e) => setForm({ ...form, reason: e.currentTarget.value })} /><//>
      <${ErrorBox} error=${error} />
    </form>
  <//>`;
}
