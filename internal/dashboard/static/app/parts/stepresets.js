// What happens to the items at each step of a run when results are discarded.

import { html } from "../html.js";
import { inert, num } from "../format.js";

const words = [
  ["reset", "to be recomputed"],
  ["withdrawn", "withdrawn from requests in flight"],
  ["redone", "to be redone in any case"],
  ["kept", "kept unless a part changes"],
  ["waiting", "waiting for the parts"],
  ["left_out", "left out still"],
];

export function StepResets({ steps }) {
  if (!steps?.length) return null;
  return html`<dl class="facts">
    ${steps.map(
      (s) => html`<div key=${s.step}>
        <dt><bdi>${inert(s.step)}</bdi></dt>
        <dd>${said(s)}</dd>
      </div>`,
    )}
  </dl>`;
}

function said(s) {
  const parts = words.filter(([name]) => s[name] > 0).map(([name, text]) => `${num(s[name])} ${text}`);
  if (s.reset > s.ready) parts.push(`${num(s.reset - s.ready)} of them once the steps before are done`);
  return parts.join(", ") || "nothing";
}
