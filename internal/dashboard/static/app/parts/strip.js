// A strip of runs, the newest last: a bar each, filled from below by its failures.
import { html } from "../html.js";
import { num, percent, plural } from "../format.js";
import { open, shade } from "../runs/rows.js";

const says = (run) => (run.state !== "completed" ? run.state : open(run) > 0 ? percent(open(run) / run.items) + " failed" : "no failures");

export function Strip({ runs }) {
  const bad = runs.filter((r) => open(r) > 0).length;
  return html`<span class="strip" role="img" data-test="strip" aria-label=${`Last ${plural(runs.length, "run")}: ${num(bad)} with failures`}>${
    runs.map((r) => html`<i key=${r.id} class=${r.state} title=${says(r)} style=${{ "--share": shade(r) * 100 + "%" }}></i>`)}</span>`;
}
