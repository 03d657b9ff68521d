import { html, useEffect, useRef } from "../html.js";
import { Icon } from "./icons.js";
import { Button } from "./buttons.js";
import { inert } from "../format.js";

let at = location.pathname + location.search;
let moved = false; // before that, the browser places the focus

// arrive focuses the heading of a new page, so that screen readers read it. A focus already in the page stays, and so
// does one next to it if the page has only loaded its content.
function arrive(heading) {
  const here = location.pathname + location.search;
  const focus = document.activeElement;
  moved ||= here !== at;
  if (here !== at ? !focus?.closest("#main") : moved && focus === document.body) heading.focus({ preventScroll: true });
  at = here;
}

// Page is the frame of each page. crumbs: [[label, path], …] before the title. subtitle: a line below it. actions: at
// the right.
export function Page({ title, tab, heading, crumbs = [], subtitle, actions, children, test }) {
  const plain = inert(title);
  const name = tab ? inert(tab) : plain ? plain + " · Tranche" : "Tranche";
  const top = useRef(null);
  useEffect(() => { document.title = name; }, [name]);
  useEffect(() => arrive(top.current), []);
  return html`<div class="page" data-test=${test}>
    <header class="page-head">
      <div class="page-title">
        ${crumbs.length > 0 && html`<nav class="crumbs" aria-label="Breadcrumb">${crumbs.map(([label, path]) =>
          html`<a href=${path} data-link><bdi>${inert(label, 60)}</bdi></a>`)}</nav>`}
        <h1 tabindex="-1" ref=${top}>${heading ?? html`<bdi>${plain}</bdi>`}</h1>
        ${subtitle && html`<p class="subtitle">${subtitle}</p>`}
      </div>
      ${actions && html`<div class="page-actions">${actions}</div>`}
    </header>
    ${children}
  </div>`;
}

export function Card({ title, actions, children, test, flush = false, class: extra = "", label }) {
  return html`<section class=${"card " + (flush ? "flush " : "") + extra} data-test=${test}
      aria-label=${label ?? (typeof title === "string" ? title : undefined)}>
    ${(title || actions) && html`<div class="card-head"><h2>${title}</h2>
      ${actions && html`<div class="card-actions">${actions}</div>`}</div>`}
    <div class="card-body">${children}</div>
  </section>`;
}

// Empty says that there is nothing, and what to do about it.
export function Empty({ title, icon, children, test }) {
  return html`<div class="empty" data-test=${test}>
    ${icon && html`<span class="empty-icon"><${Icon} name=${icon} size=${22}/></span>`}
    <p class="empty-title">${title}</p>${children}</div>`;
}

// ErrorBox shows a problem: its detail, further places, and a retry button.
export function ErrorBox({ error, title, retry, test = "error" }) {
  if (!error) return null;
  const head = title || (error.status ? `${error.title || "Error"} (${error.status})` : error.title || "Error");
  const places = (error.errors || []).filter((e) => e.message && !(error.detail || "").includes(e.message));
  return html`<div class="errorbox" role="alert" data-test=${test}>
    <${Icon} name="warn"/>
    <div class="errorbox-text"><strong>${inert(head, 200)}</strong>
      <p><bdi>${inert(error.detail || error.message, 2000)}</bdi></p>
      ${places.length > 0 && html`<ul>${places.map((e) => html`<li>
        ${e.location && html`<code><bdi>${inert(e.location, 200)}</bdi></code> `}<bdi>${inert(e.message, 500)}</bdi></li>`)}
      </ul>`}
    </div>
    ${retry && html`<${Button} small onClick=${retry}>Try again<//>`}
  </div>`;
}

export function Skeleton({ lines = 3, height }) {
  if (height) return html`<div class="skeleton block" aria-hidden="true" style=${{ height }}></div>`;
  return html`<div class="skeleton-lines" role="status" aria-label="Loading">${Array.from({ length: lines }, (_, i) =>
    html`<div class="skeleton" key=${i} style=${{ width: 92 - (i * 23) % 40 + "%" }}></div>`)}</div>`;
}

// Badge is a word with a tone: ok, warn, bad, info, busy or plain.
export function Badge({ tone = "plain", icon, title, children, test }) {
  return html`<span class=${"badge tone-" + tone} title=${title} data-test=${test}>${icon &&
    html`<${Icon} name=${icon} size=${12}/>`}${children}</span>`;
}

// stateWords are the nine states of items, as in the planes and the colors --state-0 to --state-8.
export const stateWords = ["waiting", "held", "ready", "scheduled", "in flight", "done", "failed", "skipped", "stale"];

const runStates = {
  loading: ["info", "upload"], running: ["busy", "play"], paused: ["warn", "pause"], completed: ["ok", "check"],
  cancelled: ["plain", "stop"], open: ["info", "upload"],
};

// mild is the share of failed items below which a completed run is shown as a warning.
const mild = 0.05;

// StateBadge shows the state of a run (a word), with its failed and all items and whether it is stuck, or of an
// item (one of stateWords, or its number).
export function StateBadge({ state, title, failed = 0, of = 0, stuck = false, test = "state" }) {
  const item = typeof state === "number" ? state : stateWords.indexOf(state);
  if (item >= 0) {
    return html`<span class="badge item-state" title=${title} data-test=${test} data-state=${stateWords[item]}>
      <i class=${"swatch state-" + item}></i>${stateWords[item]}</span>`;
  }
  const [tone, icon] = runStates[state] || ["plain", "info"];
  const shown = stuck ? ["warn", "warn"]
    : state === "completed" && failed > 0 ? [failed < of * mild ? "warn" : "bad", "warn"] : [tone, icon];
  return html`<span class=${"badge tone-" + shown[0]} title=${title} data-test=${test} data-state=${state}>
    <${Icon} name=${shown[1]} size=${12}/>${state}</span>`;
}
