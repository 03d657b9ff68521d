// The steps of a plan as a graph: each step is in a column after all its needs.
import { html } from "../html.js";
import { Text } from "../ui.js";
import { inert } from "../format.js";

const BOX = { wide: 132, high: 28, across: 36, down: 10 }; // pixels

export function ranks(steps) {
  const rank = new Map();
  const of = (step) => {
    if (rank.has(step.name)) return rank.get(step.name);
    rank.set(step.name, 0); // ends a cycle, which a plan cannot have
    const needs = steps.filter((s) => step.needs?.includes(s.name));
    rank.set(step.name, needs.length === 0 ? 0 : 1 + Math.max(...needs.map(of)));
    return rank.get(step.name);
  };
  steps.forEach(of);
  return rank;
}

export function columns(steps) {
  const rank = ranks(steps);
  const out = [];
  for (const s of steps) (out[rank.get(s.name)] ??= []).push(s);
  return out;
}

/** stepsOf is a plan's steps as the API lists them: [{name, needs}]. */
export const stepsOf = (plan) => plan.steps.map((name, i) => ({ name, needs: plan.needs?.[i] ?? [] }));

/** placed is each step with the upper left corner of its box, columns centered, and the total size. */
export function placed(steps) {
  const all = columns(steps);
  const most = Math.max(...all.map((c) => c.length));
  const row = BOX.high + BOX.down;
  const boxes = all.flatMap((column, x) => column.map((step, y) => ({
    step, x: x * (BOX.wide + BOX.across), y: (y + (most - column.length) / 2) * row,
  })));
  return { boxes, width: all.length * (BOX.wide + BOX.across) - BOX.across, height: most * row - BOX.down };
}

/** StepGraph draws the graph. The list of steps next to it has the same content. */
export function StepGraph({ steps }) {
  const { boxes, width, height } = placed(steps);
  const by = new Map(boxes.map((b) => [b.step.name, b]));
  const lines = boxes.flatMap((to) => (to.step.needs ?? []).map((name) => by.get(name)).filter(Boolean).map((from) => [from, to]));
  return html`<div class="graph-box" tabindex="0" role="img" data-test="step-graph"
      aria-label=${`Steps: ${steps.map((s) => inert(s.name, 40) + (s.needs?.length ? ` after ${inert(s.needs.join(", "), 200)}` : "")).join("; ")}`}>
    <div class="graph" style=${{ width: width + "px", height: height + "px" }}>
      <svg width=${width} height=${height} aria-hidden="true">${lines.map(([a, b]) => html`<path key=${a.step.name + " " + b.step.name}
        d=${`M${a.x + BOX.wide},${a.y + BOX.high / 2} C${a.x + BOX.wide + BOX.across / 2},${a.y + BOX.high / 2} ${b.x - BOX.across / 2},${
          b.y + BOX.high / 2} ${b.x},${b.y + BOX.high / 2}`}/>`)}</svg>
      ${boxes.map(({ step, x, y }) => html`<span key=${step.name} class="graph-step" title=${inert(step.name, 200)} data-test="graph-step"
        style=${{ left: x + "px", top: y + "px", width: BOX.wide + "px", height: BOX.high + "px" }}><${Text} max=${60}>${step.name}<//></span>`)}
    </div></div>`;
}

/** StepChain draws the steps in a line, parallel ones stacked. */
export function StepChain({ steps }) {
  return html`<ol class="step-chain" aria-label="Steps">${columns(steps).map((column, i) => html`<li key=${i}><span>${column.map((s) =>
    html`<${Text} key=${s.name} max=${30}>${s.name}<//>`)}</span></li>`)}</ol>`;
}
