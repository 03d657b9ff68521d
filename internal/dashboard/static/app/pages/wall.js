// A screen on a wall: active runs and what needs attention, in large type, without controls.
import { html, useEffect } from "../html.js";
import { Progress, Text, now, useLoad } from "../ui.js";
import { clock, num, percent, plural, short } from "../format.js";
import { health, liveRuns, watch } from "../live.js";
import { connection } from "../stream.js";
import { theme } from "../theme.js";
import { forecastText } from "../parts/forecast.js";
import { holds } from "../run/head.js";
import { open, waits } from "../runs/rows.js";

const most = 6; // that fit

export default function Wall() {
  useEffect(() => {
    const before = theme.value;
    const end = watch("runs");
    theme.value = "dark";
    document.title = "Tranche";
    return () => {
      end();
      theme.value = before;
    };
  }, []);
  const { data, error } = useLoad("/health", [JSON.stringify(health.value?.counts)], { every: 10 });
  const runs = (liveRuns.value?.runs ?? []).filter((r) => ["loading", "running", "paused"].includes(r.state)).sort((a, b) => waits(b) - waits(a));
  const found = (data?.kinds ?? []).filter((k) => k.severity !== "info");
  const { critical = 0, warning = 0 } = data?.counts ?? {};
  const lost = error || connection.value === "lost" ? "Connection lost" : connection.value === "waiting" ? "Not live: close other windows" : "";
  return html`<div class=${"wall" + (lost ? " lost" : "")} data-test="wall-page" aria-busy=${String(!data && !error)}>
    <header><h1 class=${critical || lost ? "is-bad" : warning ? "is-warn" : "is-ok"}>${lost || (!data ? "Loading"
      : critical || warning ? `${num(critical)} critical, ${plural(warning, "warning")}` : "All is well")}</h1><span>${clock(now.value, { date: false })}</span></header>
    <ul data-test="wall-runs">${runs.slice(0, most).map((r) => html`<${Run} key=${r.id} run=${r}/>`)}
      ${runs.length > most && html`<li class="muted">and ${plural(runs.length - most, "more run")}</li>`}
      ${liveRuns.value && runs.length === 0 && html`<li class="muted">No run is active</li>`}</ul>
    ${found.length > 0 && html`<ul class="wall-needs" data-test="wall-needs">${found.slice(0, most).map((k) => html`<li key=${k.kind}
        class=${k.severity === "critical" ? "is-bad" : "is-warn"}><${Text} max=${120}>${titleOf(k, data.conditions)}<//></li>`)}
      ${found.length > most && html`<li class="muted">and ${num(found.length - most)} more</li>`}</ul>`}
  </div>`;
}

function titleOf(kind, conditions) {
  const [one, ...more] = conditions.filter((c) => c.kind === kind.kind);
  return one && more.length === 0 ? one.title : kind.title;
}

function Run({ run: r }) {
  const { value, more } = forecastText(r.forecast);
  const why = r.hold ? holds[r.hold.kind] : r.blocker?.text ?? (r.approval?.length > 0 ? `Waits for approval: ${r.approval.join(", ")}`
    : r.at_risk ? `Will be ${r.at_risk.late} late` : "");
  return html`<li><strong><${Text} max=${60}>${r.name || r.plan}<//></strong><b>${percent(r.progress)}</b>
    <${Progress} done=${r.done} failed=${r.failed} total=${r.items} share=${r.progress} label=${"Progress of " + (r.name || r.plan)}/>
    <span>${why ? html`<span class="is-warn"><${Text} max=${90}>${why}<//></span>` : r.forecast?.p50 ? `ends ${more || value}`
      : r.forecast?.then ? `${value} ${more}` : "no forecast yet"}</span>
    <span>${open(r) > 0 && html`<span class="is-bad">${short(open(r))} failed</span>, `}${r.state === "running" ? `${short(Math.round(r.rate))}/s` : r.state}</span></li>`;
}
