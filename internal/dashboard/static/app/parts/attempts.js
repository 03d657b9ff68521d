// A timeline of the attempts at one part: created, sent, answered, by whom, and the outcome. Each generation has a
// separate scale, because days may lie between two.

import { html } from "../html.js";
import { Badge, Time } from "../ui.js";
import { duration, inert, num, plural, servedBy, shortId } from "../format.js";
import { route } from "../router.js";
import { session } from "../session.js";
import { causes } from "./causes.js";
import { Long } from "./jsonview.js";

const tones = { done: "ok", failed: "bad", retried: "warn", lost: "warn", open: "busy" };

export const outcomeTone = (outcome) => tones[outcome] ?? "plain";

/** Attempts shows attempts by generation, newest first. now is the server's clock, if known. */
export function Attempts({ attempts, now }) {
  const generations = new Map();
  for (const a of attempts) {
    if (!generations.has(a.generation)) generations.set(a.generation, []);
    generations.get(a.generation).push(a);
  }
  return [...generations.keys()]
    .sort((a, b) => b - a)
    .map(
      (g) => html`<div class="attempts" key=${g} role="group" aria-label=${`attempts of generation ${g}`}>
        ${generations.size > 1 && html`<h4 class="attempts-head">Generation ${g}</h4>`}
        <${Chart} attempts=${generations.get(g)} now=${now} />
      </div>`,
    );
}

function Chart({ attempts, now }) {
  const from = Math.min(...attempts.map((a) => Date.parse(a.created_at)));
  const to = endOf(attempts, from, now);
  return html`<ol class="attempts-list" data-test="attempts">
    ${attempts.map((a) => html`<${Attempt} key=${a.slice} attempt=${a} from=${from} to=${to} now=${now} />`)}
  </ol>`;
}

// endOf is the end of the scale. An open attempt gets at most a quarter of the width: one that waits for half an hour
// would otherwise make attempts of milliseconds invisible.
function endOf(attempts, from, now) {
  const known = Math.max(from + 1, ...attempts.map((a) => Date.parse(a.ended_at ?? a.sent_at ?? a.created_at)));
  if (attempts.every((a) => a.ended_at)) return known;
  return known - from < 2 ? now : Math.min(now, known + Math.max((known - from) / 3, 1));
}

function Attempt({ attempt: a, from, to, now }) {
  const made = Date.parse(a.created_at);
  const sent = a.sent_at ? Date.parse(a.sent_at) : null;
  const end = a.ended_at ? Date.parse(a.ended_at) : now;
  const share = (ms) => `${(100 * Math.max(ms, 0)) / (to - from)}%`;
  const bar = (start, stop, kind) => html`<rect class=${kind} x=${share(start - from)} width=${share(Math.min(stop, to) - start)} y="4" height="12" rx="3" />`;
  return html`<li class="attempt" data-outcome=${a.outcome}>
    <div class="attempt-line">
      <span class="attempt-try">try ${a.attempt}</span>
      <svg class="attempt-bar" role="img" aria-label=${spoken(a, made, sent, end)}>
        <title>${spoken(a, made, sent, end)}</title>
        <rect class="attempt-track" x="0" y="9" width="100%" height="2" rx="1" />
        ${bar(made, sent ?? end, "attempt-queued")}
        ${sent !== null && bar(sent, end, `attempt-work tone-${outcomeTone(a.outcome)}`)}
      </svg>
      <span class="attempt-took">${took(a, sent, end)}</span>
      <${Badge} tone=${outcomeTone(a.outcome)}>${a.outcome === "open" ? a.state : a.outcome}<//>
    </div>
    <p class="attempt-more">
      <${Time} at=${a.sent_at ?? a.created_at} mode="clock" />
      <span>${causes[a.cause] ?? inert(a.cause)}</span>
      <span>${plural(a.items, "item")} in the request</span>
      ${a.service && html`<bdi class="attempt-service">${inert(servedBy(a.service))}</bdi>`}
      <code title=${a.slice}>${shortId(a.slice)}</code>
      ${linksOf(session.value.links, route.value.params.run, a.slice).map(([name, to]) => html`<a key=${name} href=${to} target="_blank"
        rel="noopener" data-test="link">${inert(name, 40)}</a>`)}
      ${a.outcome === "open" && a.deadline && html`<span>deadline <${Time} at=${a.deadline} mode="clock" /></span>`}
    </p>
    ${a.error &&
    html`<p class="attempt-error"><code>${inert(a.error.code)}</code> <${Long} text=${a.error.message} /></p>`}
  </li>`;
}

/** linksOf fills in the operator's links: [name, address]. The trace of a slice has the halves of its ID, the second first. */
export function linksOf(templates, run, slice) {
  const hex = slice.replaceAll("-", "");
  const ids = { "{run}": run, "{slice}": slice, "{trace}": hex.slice(16) + hex.slice(0, 16) };
  return Object.entries(templates ?? {}).map(([name, to]) => [name, to.replace(/\{(run|slice|trace)\}/g, (id) => encodeURIComponent(ids[id]))]);
}

function took(a, sent, end) {
  if (sent === null) return "not sent";
  return duration((end - sent) / 1000) + (a.ended_at ? "" : " so far");
}

function spoken(a, made, sent, end) {
  const waited = duration(((sent ?? end) - made) / 1000);
  if (sent === null) return `try ${num(a.attempt)}: waits to be sent, for ${waited}`;
  return `try ${num(a.attempt)}: sent after ${waited}, ${a.ended_at ? "ended" : "out"} after ${duration((end - sent) / 1000)}: ${a.outcome}`;
}
