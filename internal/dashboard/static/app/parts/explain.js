// The API's explanation of why something waits: who must do what, since when, and what an operator could do.

import { html } from "../html.js";
import { Badge, Copy, Time } from "../ui.js";
import { inert, num, plural } from "../format.js";
import { adviceOnce } from "./advice.js";

const owners = { service: "info", node: "info", timer: "warn", operator: "bad", nats: "bad", step: "plain", nobody: "plain" };

/** Explanation shows a summary and the groups of items behind it. */
export function Explanation({ explanation: e, several = false }) {
  const { first, groups } = adviceOnce(e);
  return html`<div class="explain" data-test="explain">
    <p class="explain-summary">${sentence(e.summary)}</p>
    <${AdviceList} advice=${first} />
    ${groups.map((g, i) => html`<${Group} key=${i} group=${g} several=${several} />`)}
    ${(e.notes ?? []).map((note) => html`<p class="muted explain-note">${inert(note).replaceAll("`", "")}</p>`)}
  </div>`;
}

/** sentence adds a capital and a full stop. */
export function sentence(text) {
  const said = inert(text ?? "");
  if (!said) return "";
  return said[0].toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
}

function Group({ group: g, several }) {
  const where = several && g.step ? `step ${inert(g.step)}: ` : "";
  const steps = (g.steps ?? []).map((s) => `${inert(s.step)} ${num(s.items)}`).join(", ");
  const requests = g.slices > 0 ? ` in ${plural(g.slices, "request")}` : "";
  return html`<section class="explain-group">
    <h3>
      <span>${where}${plural(g.items, "item")} ${g.state}${requests}</span>
      <${Badge} tone=${owners[g.owner] ?? "plain"}>${g.reason.replaceAll("_", " ")}<//>
    </h3>
    <dl class="facts">
      ${steps && html`<div><dt>steps</dt><dd><bdi>${steps}</bdi></dd></div>`}
      <div><dt>waits on</dt><dd>${g.owner}: <bdi>${inert(g.who)}</bdi></dd></div>
      <div><dt>why</dt><dd><bdi>${inert(g.why)}</bdi></dd></div>
      ${g.since && html`<div><dt>since</dt><dd><${Time} at=${g.since} /></dd></div>`}
      ${g.last && html`<div><dt>last</dt><dd><${Time} at=${g.last.at} />: <bdi>${inert(g.last.what)}</bdi></dd></div>`}
      <div><dt>next</dt><dd><bdi>${inert(g.next)}</bdi>${Date.parse(g.when) > Date.now() && html` (<${Time} at=${g.when} />)`}</dd></div>
    </dl>
    <${AdviceList} advice=${g.advice} />
  </section>`;
}

/** AdviceList is what an operator could do, with commands to copy. */
export function AdviceList({ advice }) {
  if (!advice?.length) return null;
  return html`<ul class="advice">
    ${advice.map(
      (a, i) => html`<li key=${i}>
        <span>${sentence(a.do)}</span>
        ${a.command && html`<${Command} text=${a.command} />`}
      </li>`,
    )}
  </ul>`;
}

/** Command is a terminal command with a copy button. */
export function Command({ text }) {
  return html`<span class="command"><code tabindex="0">${inert(text)}</code><${Copy} text=${text} label="Copy the command" /></span>`;
}
