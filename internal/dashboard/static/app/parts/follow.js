// Shows the progress of a rerun or a reset.

import { html, useState, useEffect } from "../html.js";
import { api, segment } from "../api.js";
import { stream } from "../stream.js";
import { Button, ButtonLink, ErrorBox, Progress, StateBadge, useLoad } from "../ui.js";
import { inert, num, plural } from "../format.js";
import { approveRest, outcome } from "../run/canary.js";
import { causes, verdict } from "./verdict.js";

/** Follow shows a run since it was rerun, and releases the rest when its sample waits for approval. */
export function Follow({ run: id, started, select, before, onClose }) {
  const [run, setRun] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    let over = false;
    const take = (doc) => !over && setRun(doc);
    api.get(`/runs/${segment(id)}`).then(take, (err) => !over && setError(err));
    const close = stream(`/runs/${segment(id)}/events`, { run: take });
    return () => {
      over = true;
      close();
    };
  }, [id]);
  const waits = run?.canary?.state === "waiting";
  const report = useLoad(waits ? `/runs/${segment(id)}/report` : "", [run?.generation]);
  const errors = useLoad(waits ? `/runs/${segment(id)}/errors` : "", [run?.generation]);
  const sample = waits ? outcome(run, report.data) : null;
  const why = errors.data ? causes(before, select, errors.data.groups) : null;
  const approve = async () => {
    setBusy(true);
    await approveRest(id, sample);
    setBusy(false);
  };
  const bad = sample?.failed > 0;
  return html`<div class="follow" data-test="follow">
    <p>${plural(started.items, "item")} ${started.items === 1 ? "runs" : "run"} again as generation ${started.generation}.${started.held > 0 && ` ${num(started.items - started.held)} of them go first.`}</p>
    ${started.paused && html`<p class="warn-text">The run is paused (${inert(started.paused)}): nothing is done until it is resumed.</p>`}
    ${run &&
    html`<div class="follow-run" aria-live="polite">
      <${StateBadge} state=${run.state} failed=${run.failed} />
      <${Progress} done=${run.done} failed=${run.failed} total=${run.items} label="Progress of the run" />
      <dl class="facts">
        <div><dt>done</dt><dd>${num(run.done)} of ${num(run.items)}</dd></div>
        <div><dt>failed</dt><dd>${num(run.failed)}</dd></div>
        <div><dt>remaining</dt><dd>${num(Math.max(run.items - run.done - run.failed, run.settling ?? 0))}</dd></div>
      </dl>
      ${waits && html`<p class=${bad ? "bad-text" : ""} data-test="verdict">${sample
        ? verdict(sample, why) : "The canary ended."} The rest waits for your approval.</p>`}
    </div>`}
    <${ErrorBox} error=${error ?? report.error} retry=${report.error && report.reload} />
    <div class="dialog-buttons">
      ${waits && bad && html`<${ButtonLink} kind="primary" to=${`/runs/${id}/errors`} icon="warn" test="see-errors">See what failed<//>`}
      ${waits && html`<${Button} kind=${bad || !sample ? "" : "primary"} busy=${busy} disabled=${!sample} onClick=${approve} role="operator" test="approve">${
        bad ? "Approve anyway" : "Approve remaining items"}<//>`}
      <${ButtonLink} to=${`/runs/${id}`}>Open the run<//>
      <${Button} onClick=${onClose}>Close<//>
    </div>
  </div>`;
}
