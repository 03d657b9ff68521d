// What a person must see to, the worst first, each with since when and what helps.

import { html, useEffect } from "../html.js";
import { Badge, Button, ButtonLink, Card, ErrorBox, Icon, Page, Skeleton, Text, Time, useLoad } from "../ui.js";
import { go } from "../router.js";
import { health } from "../live.js";
import { inert, plural } from "../format.js";
import { Command } from "../parts/explain.js";
import { onEnter } from "../parts/enter.js";

const words = {
  critical: ["Critical", "bad", "work stands still, or is about to"],
  warning: ["Warnings", "warn", "somebody has to see to it, and it can wait"],
  info: ["Good to know", "info", "somebody may have wanted it so"],
};

/** Health is the page /health. */
export default function Health() {
  const { data, error, reload } = useLoad("/health", [], { every: 5 });
  const known = health.value;
  useEffect(() => {
    if (data && known && known.status !== data.status) reload(); // the stream knows something newer
  }, [known?.status]);
  const all = data?.conditions ?? [];
  return html`<${Page} title="Health" subtitle=${data && html`as of <${Time} at=${data.at} />`} test="health-page"
    actions=${html`<${Button} icon="reload" onClick=${reload} test="reload">Look again<//>`}>
    <${ErrorBox} error=${error} retry=${reload} />
    ${!data && !error && html`<${Card}><${Skeleton} lines=${6} /><//>`}
    ${data && html`<${Verdict} report=${data} />`}
    ${Object.entries(words).map(([severity, [title, tone, meaning]]) => {
      const found = all.filter((c) => c.severity === severity);
      return found.length > 0 && html`<section class="health-group" key=${severity} aria-label=${title}>
        <h2 class="health-head">${title} <span class="muted">${meaning}</span></h2>
        <ul class="conditions" data-rows>${found.map((c) => html`<${Condition} key=${`${c.kind}/${c.subject}`} condition=${c} tone=${tone} />`)}</ul>
      </section>`;
    })}
  <//>`;
}

function Verdict({ report: r }) {
  const count = (severity) => r.conditions.filter((c) => c.severity === severity).length;
  const [critical, warning] = [count("critical"), count("warning")];
  const tone = critical ? "bad" : warning ? "warn" : "ok";
  const title = critical
    ? `${plural(critical, "thing needs", "things need")} somebody now`
    : warning ? `${plural(warning, "thing wants", "things want")} to be seen to` : "All is well";
  const more = critical && warning ? `, and ${plural(warning, "warning")}` : "";
  return html`<section class=${`verdict tone-${tone}`} role="status" data-test="verdict" data-status=${r.status}>
    <span class="verdict-mark"><${Icon} name=${tone === "ok" ? "check" : "warn"} size=${24} /></span>
    <div><p class="verdict-title">${title}${more}</p>
    <p class="muted">${tone === "ok" ? "Runs, endpoints, nodes, streams and disks are as they should be." : "Each below, with since when it is so and what helps."}</p></div>
  </section>`;
}

function Condition({ condition: c, tone }) {
  const inside = c.link?.startsWith("/") && !c.link.startsWith("//");
  return html`<li class=${`condition tone-${tone}`} data-row=${`${c.kind}/${c.subject}`} data-test="condition" data-kind=${c.kind} tabindex="-1" onKeyDown=${onEnter(() => inside && go(c.link))}>
    <div class="condition-head">
      <h3><bdi>${inert(c.title, 300)}</bdi></h3>
      <${Badge} tone=${tone}>${inert(c.kind.replaceAll("_", " "), 40)}<//>
      <span class="condition-since"><${Time} at=${c.since} mode="for" /></span>
    </div>
    ${c.detail && html`<p class="condition-detail"><bdi>${inert(c.detail, 2000)}</bdi></p>`}
    <div class="condition-foot">
      <${Remedy} text=${c.remedy} />
      ${inside && html`<${ButtonLink} small icon="right" to=${c.link} test="condition-link">Look<//>`}
    </div>
    ${c.subject && ![c.title, c.remedy].some((t) => t?.includes(c.subject)) && html`<p class="condition-subject muted"><${Text} max=${120}>${c.subject}<//></p>`}
  </li>`;
}

// Remedy is a text in which commands stand between backquotes.
function Remedy({ text }) {
  const parts = (text ?? "").split("`");
  return html`<div class="remedy">${parts.map((part, i) => {
    if (i % 2 === 1) return html`<${Command} key=${i} text=${part} />`;
    const said = part.replace(/^[;,.\s]+/, "").trim();
    return said && html`<span key=${i}><bdi>${inert(i > 0 ? said[0].toUpperCase() + said.slice(1) : said, 1000)}</bdi></span>`;
  })}</div>`;
}
