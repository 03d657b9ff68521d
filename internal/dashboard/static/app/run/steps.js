// The steps of a run: their dependencies and progress. A press shows a step on the map.
import { html } from "../html.js";
import { Badge, Progress, Text } from "../ui.js";
import { inert, num, percent, plural, short } from "../format.js";
import { columns } from "../parts/stepgraph.js";

/** Steps draws the graph. value: the shown step, empty for all. */
export function Steps({ run, value, onChange }) {
  if (run.steps.length < 2) return html`<${Single} step=${run.steps[0]} />`;
  const all = columns(run.steps);
  return html`<div class="steps" role="radiogroup" aria-label="Step that the map shows" data-test="steps"
      onKeyDown=${(e) => keys(e, run, value, onChange)}>
    <button type="button" role="radio" class="step-all" aria-checked=${String(value === "")}
        tabindex=${value === "" ? 0 : -1} onClick=${() => onChange("")} data-test="step-all">
      <strong>All steps</strong><span class="muted">${plural(run.steps.length, "step")}</span></button>
    <div class="step-graph">
      ${all.map((column, i) => html`<div class="step-column" key=${i}>${column.map((s) => html`<${StepCard}
          key=${s.name} step=${s} steps=${run.steps} chosen=${s.name === value}
          onClick=${() => onChange(s.name)} />`)}</div>`)}
    </div>
  </div>`;
}

function keys(e, run, value, onChange) {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
  if (!by) return;
  e.preventDefault();
  const names = ["", ...run.steps.map((s) => s.name)];
  const next = names[(names.indexOf(value) + by + names.length) % names.length];
  onChange(next);
  const all = [...e.currentTarget.querySelectorAll("[role=radio]")];
  all.find((b) => (b.dataset.step ?? "") === next)?.focus();
}

function StepCard({ step: s, steps, chosen, onClick }) {
  const last = !steps.some((o) => o.needs?.includes(s.name));
  return html`<button type="button" role="radio" class=${"step-card" + (last ? " result" : "")}
      aria-checked=${String(chosen)} tabindex=${chosen ? 0 : -1}
      data-step=${s.name} data-test=${"step-" + s.name} onClick=${onClick} title=${about(s)}>
    <span class="step-head"><strong><${Text} max=${40}>${s.name}<//></strong>
      ${s.optional && html`<${Badge}>optional<//>`}${s.barrier && html`<${Badge}
          tone=${s.barrier_passed ? "ok" : "warn"}>${barrier(s)}<//>`}
      <span class="step-facts">${s.failed > 0 && html`<span
          class="bad-text">${short(s.failed)} failed</span>`}${s.rate > 0 && html`<span
          class="muted">${short(Math.round(s.rate))}/s</span>`}
        <b class="num">${percent(s.progress)}</b></span></span>
    <${Progress} done=${s.done} failed=${s.failed + s.skipped} total=${s.items}
        label=${`Progress of ${inert(s.name, 40)}`} />
  </button>`;
}

// barrier is the state of a step that begins for all items together.
function barrier(s) {
  if (s.gate) return { approved: "approved", waiting: "waits for an approval" }[s.gate.state] ?? "gate";
  return s.barrier_passed ? "barrier passed" : "barrier";
}

function about(s) {
  const needs = s.needs?.length ? `, after ${inert(s.needs.join(", "), 200)}` : "";
  return `${inert(s.endpoint, 80)} (${s.kind})${needs}: ${num(s.done)} of ${num(s.items)} done`;
}

// A run with one step has a line of item states instead.
function Single({ step: s }) {
  if (!s) return null;
  const held = s.held ?? 0;
  const parts = [
    ["ready", s.ready], ["in flight", s.in_flight], ["to be retried", s.scheduled], ["held", held],
    ["waiting", s.waiting - held], ["left out", s.skipped],
  ].filter(([, n]) => n > 0);
  return html`<p class="step-single muted" data-test="step-single">Step <${Text} class="strong"
      max=${60}>${s.name}<//> at <${Text} class="strong" max=${60}>${s.endpoint}<//>${
    parts.map(([name, n]) => html` · ${num(n)} ${name}`)}</p>`;
}
