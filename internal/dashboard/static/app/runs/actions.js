// Actions on runs in the list.
import { html } from "../html.js";
import { api } from "../api.js";
import { confirm, toast } from "../ui.js";
import { inert, num, plural, shortId } from "../format.js";

const nameOf = (run) => inert(run.name || run.plan + " " + shortId(run.id), 60);

// act changes a run and shows a message, because the list does not show it yet.
async function act(run, verb, said, body) {
  try {
    await api.post(`/runs/${run.id}/${verb}`, body);
    toast(`${nameOf(run)}: ${said}`);
  } catch (err) {
    toast(err, { tone: "bad" });
  }
}

export const pause = (run) => act(run, "pause", "paused; requests in flight still finish", { reason: "paused on the dashboard" });

/** mayResume reports whether a run can be resumed: paused, or cancelled before its end. */
export const mayResume = (run) => (run.state === "paused" && run.hold?.kind !== "canary") ||
  (run.state === "cancelled" && run.done + run.failed < run.items);

const risky = { threshold: "Resuming lifts the limit of failed items for this run.",
  fail_fast: "The rest may fail in the same way. The fail-fast check does not apply to this step again." };

/** resume resumes a run; one that its failures paused only after a question, with their account. */
export function resume(run) {
  const kind = run.state === "paused" ? run.hold?.kind : "";
  if (!risky[kind]) return act(run, "resume", "resumed", {});
  return confirm({
    title: `Resume ${nameOf(run)}?`, action: "Resume", danger: true, test: "resume-dialog",
    body: html`<p><bdi>${inert(run.hold.detail)}</bdi></p><p>${risky[kind]}</p>`,
    act: () => api.post(`/runs/${run.id}/resume`, kind === "threshold" ? { max_failed: "none" } : {}),
  });
}

export const approve = (run) => confirm({
  title: "Approve the remaining items?", action: "Approve", danger: true, test: "approve-dialog",
  body: html`<p>${nameOf(run)}: <bdi>${inert(run.hold.detail, 500)}</bdi></p><p>All items held back are sent.</p>`,
  act: () => api.post(`/runs/${run.id}/approve`, {}),
});

export const cancel = (run) => confirm({
  title: `Cancel ${nameOf(run)}?`, action: "Cancel the run", danger: true, test: "cancel-dialog",
  body: `${plural(run.items - run.done - run.failed, "item")} would stay without an outcome; results stay. To continue it ` +
    "later: Resume.",
  act: () => api.post(`/runs/${run.id}/cancel`, { reason: "cancelled on the dashboard" }),
});

export async function several(verb, runs) {
  const wrong = [];
  for (const run of runs) {
    try {
      await api.post(`/runs/${run.id}/${verb}`, verb === "resume" ? {} : { reason: verb + " of several, on the dashboard" });
    } catch (err) {
      wrong.push(`${nameOf(run)}: ${err.detail || err.message}`);
    }
  }
  const did = { pause: "paused", resume: "resumed", cancel: "cancelled" }[verb];
  if (wrong.length === 0) toast(`${plural(runs.length, "run")} ${did}`);
  else toast(`${num(runs.length - wrong.length)} ${did}, ${num(wrong.length)} not: ${wrong[0]}`, { tone: "bad" });
}

export const cancelSeveral = (runs) => confirm({
  title: `Cancel ${plural(runs.length, "run")}?`, action: "Cancel them", danger: true, test: "cancel-several-dialog",
  body: `${plural(runs.reduce((n, r) => n + r.items - r.done - r.failed, 0), "item")} would stay without an outcome; results stay. ` +
    "To continue a run later: Resume.",
  act: () => several("cancel", runs),
});

export const all = (verb, count) => confirm({
  title: verb === "pause" ? "Pause all runs?" : "Resume all runs?", test: verb + "-all-dialog",
  action: verb === "pause" ? "Pause all" : "Resume all",
  body: verb === "pause"
    ? `Nothing more is sent of ${plural(count, "run")}. Requests in flight still finish and are recorded.`
    : "Every run paused by an operator resumes. Runs paused by a canary or by failures stay paused.",
  act: async () => {
    const done = await api.post(`/runs/${verb}`, { all: true, reason: "for all runs, on the dashboard" });
    const left = done.skipped?.length ? `; ${num(done.skipped.length)} others stay unchanged` : "";
    toast(`${plural(done.runs?.length || 0, "run")} ${verb === "pause" ? "paused" : "resumed"}${left}`,
      { tone: done.runs?.length ? "ok" : "info" });
    return true;
  },
});

export function actionsOf(run) {
  const ended = run.state === "completed" || run.state === "cancelled";
  const role = "operator";
  return [
    run.hold?.kind === "canary" && { label: "Approve", icon: "check", role, test: "approve", onClick: () => approve(run) },
    run.state === "running" && { label: "Pause", icon: "pause", role, test: "pause", onClick: () => pause(run) },
    mayResume(run) && { label: risky[run.hold?.kind] ? "Resume…" : "Resume", icon: "play", role, test: "resume", onClick: () => resume(run) },
    !ended && { label: "Cancel…", icon: "stop", danger: true, role, test: "cancel", onClick: () => cancel(run) },
    ended || null,
    { label: "Errors", icon: "warn", to: `/runs/${run.id}/errors` },
    run.plan_version && { label: "Start again", icon: "repeat", role, to: "/start?plan=" + encodeURIComponent(run.plan) },
    !run.plan_version && { label: "Start again", icon: "repeat", role, to: "/start?endpoint=" + encodeURIComponent(run.plan) },
  ].filter((i) => i !== false && i !== true && i !== undefined);
}
