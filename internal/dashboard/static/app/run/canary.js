// The canary of a run: its outcome, and the approval of the rest.
import { html } from "../html.js";
import { Button, ButtonLink, Card, ErrorBox, Progress, confirm, toast, useLoad } from "../ui.js";
import { api, segment } from "../api.js";
import { can } from "../session.js";
import { failedShare, num, plural } from "../format.js";
import { verdict } from "../parts/verdict.js";
import { ended } from "./head.js";

/** outcome is the sample's result: what the newest generation of the report has done and failed. */
export function outcome(run, report) {
  const last = report?.generations?.at(-1);
  if (last && last.generation === run.generation) return { done: last.done, failed: last.failed };
  if (run.generation === 1) return { done: run.done, failed: run.failed };
  return null;
}

/** approveRest releases the rest of a run; after a failed sample it asks first. It returns whether it did. */
export async function approveRest(id, sample) {
  let answer;
  const act = async () => (answer = await api.post(`/runs/${segment(id)}/approve`, {}));
  if (sample.failed > 0) {
    await confirm({ title: "Approve although items of the canary failed?", danger: true, action: "Approve anyway", test: "approve-anyway-dialog", act,
      body: `${num(sample.failed)} of ${num(sample.done + sample.failed)} failed. The rest may fail in the same way.` });
  } else {
    await act().catch((err) => toast(err, { tone: "bad" }));
  }
  if (answer) toast(`${plural(answer.items, "item")} released`);
  return Boolean(answer);
}

export function Canary({ run }) {
  const waits = run.canary?.state === "waiting";
  const again = waits && run.generation > 1 && can("viewer");
  const report = useLoad(again ? `/runs/${segment(run.id)}/report` : "", [run.generation, run.canary?.state]);
  if (!run.canary || run.canary.state === "passed" || ended(run)) return null;
  const found = outcome(run, report.data);
  const held = run.steps.reduce((n, s) => Math.max(n, s.held ?? 0), 0);
  const bad = found?.failed > 0;
  return html`<${Card} title="Canary" class=${"canary " + (waits ? "waits" : "")} test="canary">
    <p>${waits
      ? html`<strong>${found && verdict(found, null, again) || `The canary of ${plural(run.canary.items, "item")} ended.`}</strong> ${plural(held, "item waits", "items wait")} for your approval.`
      : html`A canary of ${plural(run.canary.items, "item")}, spread over all items, runs first; the rest ${run.canary.auto ? "follows automatically if it goes well" : "waits for your approval"}.`}</p>
    ${found && html`<div class="canary-result">
      <${Progress} done=${found.done} failed=${found.failed}
          total=${Math.max(run.canary.items, found.done + found.failed)} label="The canary" />
      <p data-test="canary-result"><b class=${bad ? "" : "ok-text"}>${num(found.done)} done</b>, <b
          class=${bad ? "bad-text" : ""}>${num(found.failed)} failed</b>
        ${found.done + found.failed > 0 && html`<span
            class="muted"> (${failedShare(found)})</span>`}</p></div>`}
    <${ErrorBox} error=${report.error} retry=${report.reload} />
    <div class="card-buttons">
      ${bad && html`<${ButtonLink} kind=${waits ? "primary" : ""} to=${`/runs/${segment(run.id)}/errors`}
          icon="warn">What failed<//>`}
      ${waits && html`<${Button} kind=${bad || !found?.done ? "" : "primary"} icon="play" role="operator" disabled=${!found}
          onClick=${() => approveRest(run.id, found)} test="approve">${bad ? "Approve anyway" : "Approve remaining items"}<//>`}
    </div>
  <//>`;
}
