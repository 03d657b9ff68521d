// Conditions that need an operator, worst first: one card per kind, with buttons for the remedies.

import { html, useEffect, useState } from "../html.js";
import { Badge, Button, ButtonLink, Card, ErrorBox, Icon, Menu, Page, Skeleton, Text, Time, useLoad } from "../ui.js";
import { go } from "../router.js";
import { health } from "../live.js";
import { inert, num, plural } from "../format.js";
import { Command } from "../parts/explain.js";
import { Acts, MuteDialog, back, risky, take } from "../parts/conditions.js";
import { onEnter } from "../parts/enter.js";

const words = {
  critical: ["Critical", "bad", "work is stalled, or is about to"],
  warning: ["Warnings", "warn", "needs an operator, but can wait"],
  info: ["Good to know", "info", "may be intended"],
};
const few = 5; // conditions per kind shown at first

export default function Health() {
  const { data, error, reload } = useLoad("/health", [], { every: 5 });
  const [muted, setMuted] = useState(null);
  const known = health.value;
  useEffect(() => {
    if (data && known && known.status !== data.status) reload(); // the stream has a newer state
  }, [known?.status]);
  const all = data?.conditions ?? [];
  const kinds = data?.kinds ?? [];
  const put = (name, title) => setMuted({ name, title });
  return html`<${Page} title="Health" subtitle=${data && html`as of <${Time} at=${data.at} />`} test="health-page"
    actions=${html`<${Button} icon="reload" onClick=${reload} test="reload">Reload<//>`}>
    <${ErrorBox} error=${error} retry=${reload} />
    ${!data && !error && html`<${Card}><${Skeleton} lines=${6} /><//>`}
    ${data && html`<${Verdict} report=${data} />`}
    ${Object.entries(words).map(([severity, [title, tone, meaning]]) => {
      const found = kinds.filter((k) => k.severity === severity);
      return found.length > 0 && html`<section class="health-group" key=${severity} aria-label=${title}>
        <h2 class="health-head">${title} <span class="muted">${meaning}</span></h2>
        <ul class="conditions" data-rows>${found.map((k) => html`<${Kind} key=${k.kind} kind=${k} conditions=${all.filter((c) => c.kind === k.kind)} tone=${tone} onMuted=${put} onDone=${reload} />`)}</ul>
      </section>`;
    })}
    ${data?.muted?.length > 0 && html`<${MuteCondition} conditions=${data.muted} onDone=${reload} />`}
    ${muted && html`<${MuteDialog} ...${muted} onDone=${reload} onClose=${() => setMuted(null)} />`}
  <//>`;
}

function Verdict({ report: r }) {
  const { critical, warning } = r.counts;
  const tone = critical ? "bad" : warning ? "warn" : "ok";
  const title = critical
    ? `${plural(critical, "condition needs", "conditions need")} action now`
    : warning ? `${plural(warning, "warning needs", "warnings need")} attention` : "All is well";
  const more = critical && warning ? `, and ${plural(warning, "warning")}` : "";
  const muted = r.muted?.length ? ` ${plural(r.muted.length, "condition")} muted.` : "";
  return html`<section class=${`verdict tone-${tone}`} role="status" data-test="verdict" data-status=${r.status}>
    <span class="verdict-mark"><${Icon} name=${tone === "ok" ? "check" : "warn"} size=${24} /></span>
    <div><p class="verdict-title">${title}${more}</p>
    <p class="muted">${tone === "ok" ? "Runs, endpoints, nodes, streams and disks are as they should be." : "Each below, with since when it is so and what helps."}${muted}</p></div>
  </section>`;
}

// Kind is a card of the conditions of a kind. A single one is shown in full, several have a line each.
function Kind({ kind: k, conditions, tone, onMuted, onDone }) {
  const [whole, setWhole] = useState(false);
  const [c] = conditions;
  if (!c) return null;
  const several = conditions.length > 1;
  const title = several ? k.title : c.title;
  const name = several ? { kind: k.kind } : { kind: k.kind, subject: c.subject };
  const marks = new Set(conditions.map((one) => JSON.stringify(one.mark)));
  const mark = marks.size === 1 ? c.mark : undefined; // otherwise each line has its own
  return html`<li class=${`condition tone-${tone}`} data-row=${k.kind} data-test="condition" data-kind=${k.kind} tabindex="-1" onKeyDown=${onEnter(() => !several && inside(c) && go(c.link))}>
    <div class="condition-head">
      <h3><bdi>${inert(title, 300)}</bdi></h3>
      <${Badge} tone=${tone}>${inert(k.kind.replaceAll("_", " "), 40)}<//>
      <span class="muted" data-test="turn">waits on: ${c.owner}</span>
      <span class="condition-since"><${Time} at=${k.since} mode="for" /></span>
    </div>
    <${Mark} mark=${mark} />
    ${!several && c.detail && html`<p class="condition-detail"><bdi>${inert(c.detail, 2000)}</bdi></p>`}
    ${!several && c.subject && ![c.title, c.remedy].some((t) => t?.includes(c.subject)) && html`<p class="condition-subject muted"><${Text} max=${120}>${c.subject}<//></p>`}
    ${several && html`<ul class="condition-list">${conditions.slice(0, whole ? conditions.length : few).map((one) => html`<${Line} key=${one.subject} condition=${one} marked=${!mark} onMuted=${onMuted} onDone=${onDone} />`)}</ul>`}
    ${conditions.length > few && html`<${Button} small kind="ghost" onClick=${() => setWhole(!whole)} test="show-all">${whole ? "Show fewer" : `Show all ${num(conditions.length)}`}<//>`}
    <div class="condition-foot">
      <${Acts} conditions=${conditions} onDone=${onDone} />
      <${Words} name=${name} title=${title} mark=${mark} onMuted=${onMuted} onDone=${onDone} />
      ${!several && inside(c) && html`<${ButtonLink} kind=${risky(c.kind) ? "primary" : ""} icon="right" to=${c.link} test="condition-link">Details<//>`}
    </div>
    <${Remedy} text=${c.remedy} more=${several} />
  </li>`;
}

const inside = (c) => c.link?.startsWith("/") && !c.link.startsWith("//");

function Line({ condition: c, marked, onMuted, onDone }) {
  const name = { kind: c.kind, subject: c.subject };
  return html`<li data-test="condition-line" data-subject=${c.subject}>
    <span class="condition-line"><bdi>${inert(c.title, 200)}</bdi> <span class="muted"><${Time} at=${c.since} mode="for" /></span>
      ${marked && html`<${Mark} mark=${c.mark} />`}
      ${risky(c.kind) && html`<span class="muted" data-test="evidence"><bdi>${inert(c.detail, 300)}</bdi></span>`}</span>
    <span class="condition-acts"><${Acts} conditions=${[c]} onDone=${onDone} small />
      ${inside(c) && html`<${ButtonLink} small to=${c.link} label=${`Details of ${inert(c.title, 80)}`}>Details<//>`}
      <${Menu} small label=${`More about ${inert(c.title, 80)}`} test="line-more" items=${[
        { label: "Mute…", icon: "pause", role: "operator", test: "mute-one", onClick: () => onMuted(name, c.title) },
        { label: "Acknowledge", icon: "check", role: "operator", test: "take-one", onClick: () => take(name, onDone) },
        c.mark && { label: "Undo", icon: "cross", role: "operator", test: "back-one", onClick: () => back(name, onDone) },
      ].filter(Boolean)} /></span>
  </li>`;
}

// Words are the buttons to mute or acknowledge conditions.
function Words({ name, title, mark, onMuted, onDone }) {
  return html`<${Button} role="operator" test="muted" onClick=${() => onMuted(name, title)}>Mute…<//>
    ${mark?.state === "acknowledged"
      ? html`<${Button} role="operator" test="back" onClick=${() => back(name, onDone)}>Undo<//>`
      : html`<${Button} role="operator" test="take" onClick=${() => take(name, onDone)}>Acknowledge<//>`}`;
}

function Mark({ mark: m }) {
  if (!m) return null;
  const by = html`<bdi>${inert(m.by, 60)}</bdi>`;
  const why = m.reason && html`: <bdi>${inert(m.reason, 500)}</bdi>`;
  const text = {
    acknowledged: html`${by} acknowledged it <${Time} at=${m.at} />`,
    worse: html`It got worse since ${by} muted it <${Time} at=${m.at} />${why}`,
    muted: html`Muted by ${by} <${Time} at=${m.at} />, ${m.until ? html`back <${Time} at=${m.until} />` : "until it gets worse"}${why}`,
  }[m.state];
  return html`<p class="condition-mark muted" data-test="mark" data-state=${m.state}>${text}</p>`;
}

// MuteCondition lists muted conditions, by whom and until when; those muted together are restored together.
function MuteCondition({ conditions, onDone }) {
  const groups = new Map();
  for (const c of conditions) {
    const key = `${c.kind}/${c.mark?.by}/${c.mark?.at}`;
    groups.set(key, [...(groups.get(key) ?? []), c]);
  }
  return html`<section class="health-group" aria-label="Muted" data-test="mute-list">
    <h2 class="health-head">Muted <span class="muted">until it gets worse, or the time is up</span></h2>
    <ul class="conditions">${[...groups].map(([key, of]) => html`<li class="condition tone-plain" key=${key} data-kind=${of[0].kind}>
      <div class="condition-head"><h3><bdi>${inert(of[0].title, 300)}</bdi>${of.length > 1 && ` and ${num(of.length - 1)} more`}</h3>
        <${Badge}>${inert(of[0].kind.replaceAll("_", " "), 40)}<//></div>
      <${Mark} mark=${of[0].mark} />
      <div class="condition-foot"><${Button} small role="operator" test="back" onClick=${() =>
        back(of.map((c) => ({ kind: c.kind, subject: c.subject })), onDone)}>Unmute<//></div>
    </li>`)}</ul>
  </section>`;
}

// Remedy is a text with commands in backquotes: they are for a terminal, so they follow the buttons.
function Remedy({ text, more }) {
  const parts = (text ?? "").split("`");
  const said = html`<div class="remedy">${parts.map((part, i) => {
    if (i % 2 === 1) return html`<${Command} key=${i} text=${part} />`;
    const plain = part.replace(/^[;,.\s]+/, "").trim();
    return plain && html`<span key=${i}><bdi>${inert(i > 0 ? plain[0].toUpperCase() + plain.slice(1) : plain, 1000)}</bdi></span>`;
  })}</div>`;
  if (parts.length === 1) return said;
  return html`<details class="terminal"><summary>${more ? "CLI command (for the first)" : "CLI command"}</summary>${said}</details>`;
}
