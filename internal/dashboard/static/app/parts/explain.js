// The API's explanation of why something waits: who must do what, since when, and what an operator could do.

import { html } from "../html.js";
import { Badge, Button, ButtonLink, Copy, Time } from "../ui.js";
import { inert, num, plural } from "../format.js";
import { buttonsOf, causesOf, telling } from "./advice.js";

const owners = { service: "info", node: "info", timer: "warn", operator: "bad", nats: "bad", step: "plain", nobody: "plain" };

/**
 * Explanation says what waits, who must act, since when, and has a button for each remedy; the rest is folded. acts are
 * what the page itself can do: functions by name, as in buttonsOf.
 */
export function Explanation({ explanation: e, several = false, acts = {} }) {
  const { causes, advice } = causesOf(e);
  const all = [...causes.flatMap((c) => c.advice), ...advice];
  return html`<div class="explain" data-test="explain">
    <p class="explain-summary">${sentence(e.summary)}</p>
    ${causes.map((c) => html`<section class="explain-group" key=${c.reason + c.who} data-test="cause">
      <h3><span>${several && c.steps.length > 0 ? `${inert(c.steps.join(", "), 100)}: ` : ""}${plural(c.items, "item")}</span>
        <${Badge} tone=${owners[c.owner] ?? "plain"}>${c.reason.replaceAll("_", " ")}<//></h3>
      <p><bdi>${sentence(c.why)}</bdi></p>
      <p class="muted">waits on ${c.owner}: <bdi>${inert(c.who)}</bdi>${c.since && html`, <${Time} at=${c.since} mode="for" />`}</p>
      ${c.advice.filter((a) => !a.command).map((a) => html`<p key=${a.do}>${sentence(a.do)}</p>`)}
    </section>`)}
    <div class="card-buttons" data-test="remedies">${buttonsOf(all).map((b) => (acts[b.act]
      ? html`<${Button} small key=${b.label} role="operator" onClick=${acts[b.act]}>${b.label}<//>`
      : html`<${ButtonLink} small key=${b.label} to=${b.to}>${inert(b.label, 60)}<//>`))}</div>
    ${(e.notes ?? []).map((note) => html`<p class="muted explain-note">${inert(note).replaceAll("`", "")}</p>`)}
    ${(causes.length > 0 || all.length > 0) && html`<details class="terminal"><summary>Details and CLI commands</summary>
      <${AdviceList} advice=${all} />
      ${(e.groups ?? []).map((g, i) => html`<${Group} key=${i} group=${g} several=${several} />`)}</details>`}
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
    </h3>
    <dl class="facts">
      ${steps && html`<div><dt>steps</dt><dd><bdi>${steps}</bdi></dd></div>`}
      <div><dt>why</dt><dd><bdi>${inert(g.why)}</bdi></dd></div>
      ${g.last && html`<div><dt>last</dt><dd><${Time} at=${g.last.at} />: <bdi>${inert(g.last.what)}</bdi></dd></div>`}
      <div><dt>next</dt><dd><bdi>${inert(g.next)}</bdi>${Date.parse(g.when) > Date.now() && html` (<${Time} at=${g.when} />)`}</dd></div>
    </dl>
  </section>`;
}

/** AdviceList is what an operator could do, with commands to copy. */
export function AdviceList({ advice }) {
  if (!advice?.length) return null;
  const commands = advice.map((a) => a.command).filter(Boolean);
  return html`<ul class="advice">
    ${advice.map(
      (a, i) => html`<li key=${i}>
        <span>${sentence(a.do)}</span>
        ${a.command && html`<${Command} text=${a.command} others=${commands} />`}
      </li>`,
    )}
  </ul>`;
}

/** Command is a terminal command with a copy button. What others do not have is bold. */
export function Command({ text, others = [text] }) {
  return html`<span class="command"><code>${telling(inert(text), others).map(([word, own]) =>
    (own ? html`<b>${word} </b>` : word + " "))}</code><${Copy} text=${text} label="Copy the command" /></span>`;
}
