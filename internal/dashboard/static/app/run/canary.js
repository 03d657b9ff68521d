// The sample of a run that goes first: what became of it, and the word that lets the others go.
import { html } from "../html.js";
import { Button, ButtonLink, Card, ErrorBox, Progress, toast, useLoad } from "../ui.js";
import { api, segment } from "../api.js";
import { num, percent, plural } from "../format.js";
import { verdict } from "../parts/verdict.js";
import { ended } from "./head.js";

/** outcome is what the sample has come to: what the newest generation of the report has done and failed. */
export function outcome(run, report) {
  const last = report?.generations?.at(-1);
  if (last && last.generation === run.generation) return { done: last.done, failed: last.failed };
  if (run.generation === 1) return { done: run.done, failed: run.failed };
  return null;
}

export function Canary({ run }) {
  const waits = run.canary?.state === "waiting";
  const again = waits && run.generation > 1;
  const report = useLoad(again ? `/runs/${segment(run.id)}/report` : "", [run.generation, run.canary?.state]);
  if (!run.canary || run.canary.state === "passed" || ended(run)) return null;
  const found = outcome(run, report.data);
  const held = run.steps.reduce((n, s) => Math.max(n, s.held ?? 0), 0);
  const approve = async () => {
    try {
      const answer = await api.post(`/runs/${segment(run.id)}/approve`, {});
      toast(`${plural(answer.items, "item goes", "items go")} on`);
    } catch (err) {
      toast(err, { tone: "bad" });
    }
  };
  const bad = found?.failed > 0;
  return html`<${Card} title="Canary" class=${"canary " + (waits ? "waits" : "")} test="canary">
    <p>${waits
      ? html`<strong>${found && verdict(found, null, again) || `The canary of ${plural(run.canary.items, "item")} has ended.`}</strong> ${plural(held, "item waits", "items wait")} for your word.`
      : html`A canary of ${plural(run.canary.items, "item")}, spread over all, goes first; the others ${run.canary.auto ? "follow by themselves when it goes well" : "wait until you approve"}.`}</p>
    ${found && html`<div class="canary-result">
      <${Progress} done=${found.done} failed=${found.failed}
          total=${Math.max(run.canary.items, found.done + found.failed)} label="The canary" />
      <p data-test="canary-result"><b class=${bad ? "" : "ok-text"}>${num(found.done)} done</b>, <b
          class=${bad ? "bad-text" : ""}>${num(found.failed)} failed</b>
        ${found.done + found.failed > 0 && html`<span
            class="muted"> (${percent(found.failed / (found.done + found.failed))})</span>`}</p></div>`}
    <${ErrorBox} error=${report.error} />
    <div class="card-buttons">
      ${bad && html`<${ButtonLink} kind=${waits ? "primary" : ""} to=${`/runs/${segment(run.id)}/errors`}
          icon="warn">What failed<//>`}
      ${waits && html`<${Button} kind=${bad ? "" : "primary"} icon="play" role="operator" onClick=${approve}
          test="approve">${bad ? "Let the others go anyway" : "Let the others go"}<//>`}
    </div>
  <//>`;
}
