// Saved plans: their versions and source, and saving a new version.
import { html, useState } from "../html.js";
import {
  Page, Card, Button, ButtonLink, Copy, ErrorBox, Select, Skeleton, Text, Time, toast, useLoad,
} from "../ui.js";
import { Link, setQuery } from "../router.js";
import { api, segment } from "../api.js";
import { inert, num, plural } from "../format.js";
import { can } from "../session.js";
import { Durations } from "../runs/parts.js";
import { StepChain, StepGraph, stepsOf } from "../parts/stepgraph.js";
import { endpointPath } from "../parts/target.js";
import { Documents, at, removal } from "../parts/documents.js";
import { Editor, Source, template } from "../plans/source.js";

export default function Plans({ query }) {
  return html`<${Documents} kind="plan" icon="plans" query=${query} template=${template} columns=${columns} One=${Plan}
    what="A plan says through which steps each item goes: which endpoints it calls, in which order, how many items per request, and how failures are handled. Write one here, or apply a file:"/>`;
}

const columns = [
  { key: "name", title: "Plan", class: "runs-name", render: (p) => html`<${Link} to=${at("plan")(p)}><${Text} max=${80}>${p.name}<//><//>` },
  { key: "version", title: "Version", align: "right", render: (p) => p.version },
  { key: "steps", title: "Steps", render: (p) => html`<${StepChain} steps=${stepsOf(p)}/>` },
  { key: "runs", title: "Runs", align: "right", render: (p) => html`<span class="num">${num(p.runs)}${p.running > 0 &&
    html`<span class="under is-info">${num(p.running)} running</span>`}</span>` },
  { key: "created_by", title: "By", hide: "narrow", render: (p) => html`<${Text} max=${40}>${p.created_by}<//>` },
  { key: "created_at", title: "Changed", align: "right", class: "nowrap", render: (p) => html`<${Time} at=${p.created_at}/>` },
];

function Plan({ name, query: { version = "" }, editing, onApplied }) {
  const path = "/plans/" + segment(name);
  const plan = useLoad(path + (version ? "/versions/" + version : ""));
  const versions = useLoad(path + "/versions", [plan.data?.newest]);
  const [older, setOlder] = useState([]);
  const p = plan.data;
  const all = [...(versions.data?.versions || []), ...older];
  const next = older.length > 0 ? older[older.length - 1].next : versions.data?.next;
  const more = async () => {
    try {
      const page = await api.get(`${path}/versions?before=${next}`);
      const got = page.versions || [];
      if (got.length > 0) got[got.length - 1] = { ...got[got.length - 1], next: page.next };
      setOlder([...older, ...got]);
    } catch (err) {
      toast(err, { tone: "bad" });
    }
  };
  const remove = removal("plan", name, "All its versions go. Runs keep the plan that they started with.");
  const newest = !p || p.version === p.newest;
  const actions = html`
    ${can("admin") && html`<${Button} kind="ghost" icon="trash" label="Delete the plan" title="Delete the plan" onClick=${remove} test="delete"/>`}
    <${Button} role="operator" onClick=${() => setQuery({ edit: "1" }, { replace: false })} test="edit">New version<//>
    ${can("operator") && html`<${ButtonLink} kind="primary" icon="play" test="start-plan"
      to=${"/start?plan=" + encodeURIComponent(name + (newest ? "" : "@" + p.version))}>Start a run<//>`}`;
  return html`<${Page} title=${name} crumbs=${[["Plans", "/plans"]]} test="plan-page" actions=${!editing && p && actions}
      subtitle=${p && html`Version ${p.version}${newest ? ", the newest" : ` of ${p.newest}`} · ${html`<${Time} at=${p.created_at}/>`} by
        <bdi>${" " + inert(p.created_by, 60)}</bdi> · ${plural(p.runs, "run")}`}>
    <${ErrorBox} error=${plan.error} retry=${plan.reload}/>
    ${!p && !plan.error && html`<${Card}><${Skeleton} lines=${8}/><//>`}
    ${p && editing && html`<${Card} flush label="New version"><${Editor} name=${name} version=${p.newest} source=${p.source} onApplied=${onApplied}
      onCancel=${() => setQuery({ edit: "" })}/><//>`}
    ${p && !editing && html`<div class="plan">
      <${Card} flush title="Source" actions=${html`${all.length > 1 && html`<${Select} label="Version" test="version" value=${String(p.version)}
          onChange=${(v) => setQuery({ version: v })} options=${all.map((v) => [String(v.version), `Version ${v.version}`])}/>`}
        <${Copy} text=${p.source} label="Copy the source"/>`}><${Source} text=${p.source}/><//>
      <div class="column">
        <${Card} title="Steps">${p.steps.length > 1 && html`<${StepGraph} steps=${stepsOf(p)}/>`}<ol class="plan-steps">${p.steps.map((s, i) => html`<li key=${s}><span class="plan-number">${i + 1}</span>
          <div class="grow"><strong><${Text} max=${60}>${s}<//></strong>${p.endpoints?.[i] && html`<span class="under">asks ${" "}<${Link} to=${endpointPath(p.endpoints[i])}><${Text} max=${60}>${p.endpoints[i]}<//><//></span>`}${
            p.needs?.[i]?.length > 0 && html`<span class="under">after ${inert(p.needs[i].join(", "), 200)}</span>`}</div></li>`)}</ol><//>
        <${Durations} plan=${name}/>
        <${Card} title="Versions" flush><${ErrorBox} error=${versions.error}/><ul class="plan-versions" data-rows>${all.map((v) => html`<li key=${v.version}
          data-row=${v.version}><a href=${`${at("plan")({ name })}&version=${v.version}`} aria-current=${v.version === p.version ? "true" : undefined}
            onClick=${(e) => { e.preventDefault(); setQuery({ version: String(v.version) }); }}>
            <b>${v.version}</b><span class="grow"><${Text} max=${30}>${v.created_by}<//></span>
            <span class="muted">${plural(v.runs, "run")}</span><${Time} at=${v.created_at}/></a></li>`)}</ul>
          ${next && html`<div class="plan-more"><${Button} small onClick=${more}>Older versions<//></div>`}<//>
      </div></div>`}
  <//>`;
}
