// An item at one step: its state, result and attempts.

import { html } from "../html.js";
import { Badge, Button, Card, Copy, StateBadge, Text, Time, now } from "../ui.js";
import { bytes, inert, plural, servedBy } from "../format.js";
import { Attempts } from "./attempts.js";
import { resultPath } from "./itempath.js";
import { Long } from "./jsonview.js";
import { Preview } from "./preview.js";
import { targetText } from "./target.js";

/** itemStates is the state of an item's step, for badges. */
export const itemStates = (step) => (step.stale && step.state === "done" ? "stale" : step.state.replaceAll("_", " "));

/** ItemStep shows a step; node is its result if that is JSON. */
export function ItemStep({ run, item, step, node, onReset, onAccept }) {
  const recorded = step.generation > 0;
  const resettable = !["waiting", "held", "skipped"].includes(step.state) || recorded;
  const head = html`<span class="step-title"><${Text} max=${60}>${step.name}<//> <${StateBadge} state=${itemStates(step)} test="step-state" />${step.optional && html` <${Badge} tone="info">optional<//>`}${step.accepted && html` <${Badge} tone="info" test="accepted">accepted<//>`}</span>`;
  return html`<${Card}
    title=${head}
    label=${`step ${inert(step.name, 60)}`}
    test=${`step-${step.name}`}
    class="item-step"
    actions=${html`${step.state === "failed" && html`<${Button} small icon=${step.accepted ? "" : "check"} role="operator" test="accept-part" onClick=${onAccept}>${step.accepted ? "Withdraw…" : "Accept…"}<//>`}
      <${Button} small icon="reload" role="operator" disabled=${!resettable} title=${resettable ? "Discard this result and recompute it" : "There is no result yet"} test="reset-part" onClick=${onReset}>Reset…<//>`}
  >
    <p class="step-target" id=${`step-${step.step}`}>${targetText(step)}${step.needs?.length > 0 && html`; needs ${names(step.needs)}`}</p>
    <${Standing} step=${step} />
    ${step.error && html`<div class="part-error" data-test="part-error">
      <code>${inert(step.error.code, 200)}</code>
      <p><${Long} text=${step.error.message} most=${1000} /></p>
      <${Copy} text=${`${step.error.code}: ${step.error.message}`} label="Copy the error" />
    </div>`}
    ${step.accepted && html`<p class="standing" data-test="acceptance">Accepted <${Time} at=${step.accepted.at} /> by <${Text} max=${60}>${step.accepted.by}<//>: <bdi>${inert(step.accepted.reason, 2000)}</bdi></p>`}
    ${recorded && html`<${Origin} step=${step} />`}
    ${(node || step.result_bytes || step.large) &&
    html`<${Preview}
      node=${node}
      size=${step.size}
      base64=${step.result_bytes}
      contentType=${step.content_type}
      name=${`${item.key}-${step.name}`}
      href=${resultPath(run, item, step.name)}
    />`}
    ${step.attempts.length > 0
      ? html`<details class="step-attempts" open=${step.attempts.length > 1 || step.state !== "done"}>
          <summary>${plural(step.attempts.length, "attempt")}</summary>
          <${Attempts} attempts=${step.attempts} now=${now.value} />
        </details>`
      : step.state !== "skipped" && html`<p class="muted">No attempts yet</p>`}
    ${step.earlier?.length > 0 && html`<${Earlier} parts=${step.earlier} />`}
  <//>`;
}

const names = (list) => list.map((n, i) => html`${i > 0 && ", "}<${Text} max=${40}>${n}<//>`);

// Standing says why an item waits or was left out.
function Standing({ step: s }) {
  const steps = (list) => html`${list.length === 1 ? "step" : "steps"} ${names(list)}`;
  if (s.state === "skipped" && s.left_out_by?.length) {
    return html`<p class="standing">Left out: ${steps(s.left_out_by)} failed for this item.</p>`;
  }
  if (s.state === "waiting" && s.waits_for?.length) return html`<p class="standing">Waits for ${steps(s.waits_for)}.</p>`;
  if (s.waits_for?.length) return html`<p class="standing">At the barrier: ${steps(s.waits_for)} has to end for all items.</p>`;
  if (s.state === "held") return html`<p class="standing">Held back until the canary of the run has passed.</p>`;
  if (s.stale) return html`<p class="standing">Its inputs are being recomputed.</p>`;
  return null;
}

function Origin({ step: s }) {
  return html`<p class="origin">
    <span>generation ${s.generation}</span>
    ${s.recorded_at && html`<span><${Time} at=${s.recorded_at} mode="clock" /></span>`}
    ${s.size > 0 && html`<span>${bytes(s.size)}</span>`}
    ${s.sha256 && html`<span>sha256 <code title=${s.sha256}>${s.sha256.slice(0, 12)}</code><${Copy} text=${s.sha256} label="Copy the digest" /></span>`}
    ${s.service && html`<span>by <${Text} max=${60}>${servedBy(s.service)}<//></span>`}
  </p>`;
}

function Earlier({ parts }) {
  return html`<details class="earlier" data-test="earlier">
    <summary>${plural(parts.length, "earlier generation")}</summary>
    <ol>
      ${parts.map(
        (p) => html`<li key=${p.generation}>
          <strong>generation ${p.generation}</strong>
          ${p.recorded_at && html` <${Time} at=${p.recorded_at} mode="clock" />`}
          ${p.error
            ? html`<span class="earlier-error"><code>${inert(p.error.code, 100)}</code> <${Long} text=${p.error.message} most=${200} /></span>`
            : html`<span>${p.size > 0 ? bytes(p.size) : "no result"}${p.sha256 && html`, sha256 <code title=${p.sha256}>${p.sha256.slice(0, 12)}</code>`}</span>`}
        </li>`,
      )}
    </ol>
  </details>`;
}
