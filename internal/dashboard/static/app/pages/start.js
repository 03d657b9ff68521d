// Starts a run: plan or endpoint, items, settings; with a dry run.
import { html, useEffect, useRef, useState } from "../html.js";
import {
  Page, Card, Button, Check, ErrorBox, Field, Icon, Progress, Select, Skeleton, Text, toast, useLoad, Empty,
} from "../ui.js";
import { go, Link } from "../router.js";
import { newKey } from "../api.js";
import { can } from "../session.js";
import { bytes, inert, near, num, percent, plural } from "../format.js";
import { StepChain, stepsOf } from "../parts/stepgraph.js";
import { upload } from "../upload.js";
import { blank, care, more, nameFrom, pacing, path, placeOf, typeOf } from "../start/settings.js";
import { DropZone, Preview, Rows, usePreview } from "../start/items.js";

export default function Start({ query }) {
  const plans = useLoad("/plans");
  const endpoints = useLoad("/endpoints");
  const [form, setForm] = useState({
    ...blank, what: query.endpoint !== undefined ? "endpoint" : "plan", plan: query.plan || "", endpoint: query.endpoint || "",
  });
  const [file, setFile] = useState(null);
  const [work, setWork] = useState(null);   // {what: "dry" | "start", share, again}
  const [problem, setProblem] = useState(null);
  const [found, setFound] = useState(null);
  const key = useRef(newKey());
  const control = useRef(null);
  const preview = usePreview(file, form.key);
  useEffect(() => () => control.current?.abort(), []);

  // A change makes it another start: the dry run and the key of the last attempt no longer apply.
  const changed = () => {
    key.current = newKey();
    setProblem(null);
    setFound(null);
  };
  const set = (changes) => {
    setForm((f) => ({ ...f, ...changes }));
    changed();
  };
  const take = (f) => {
    setFile(f);
    set({ key: "", ...(form.name && (!file || form.name !== nameFrom(file)) ? {} : { name: nameFrom(f) }) });
  };
  useEffect(() => { // scrolls to the error
    if (problem) document.querySelector("#main [aria-invalid=true], #main .start-drop.wrong button")?.focus();
  }, [problem]);
  useEffect(() => { // the first plan if any, else an endpoint
    const list = plans.data?.plans || [];
    if (!plans.data || form.plan || query.endpoint !== undefined) return;
    if (list.length > 0) setForm((f) => ({ ...f, plan: list[0].name }));
    else setForm((f) => ({ ...f, what: "endpoint" }));
  }, [plans.data]);

  const run = async (what) => {
    control.current = new AbortController();
    let sent = 0;
    setProblem(null);
    setWork({ what, share: 0 });
    try {
      const { status, body } = await upload(path(form, file, { dryRun: what === "dry", key: key.current }), file, {
        type: typeOf(file), control: control.current.signal,
        onProgress: (share, again) => {
          sent = Math.max(sent, share); // it may have been stored before the connection broke
          setWork({ what, share, again: Boolean(again) });
        },
      });
      if (what === "dry") setFound(body);
      else {
        if (status === 200) toast("Already started; this is the run", { tone: "info" });
        go("/runs/" + (body.run || body.id));
      }
    } catch (err) {
      if (err.name === "AbortError") toast(what === "start" && sent === 1 ? "Cancelled; if it was stored by then, it is in the list of runs"
        : "Cancelled; nothing was started", { tone: "info" });
      else setProblem(err);
    } finally {
      setWork(null);
    }
  };

  if (!can("operator")) return html`<${Page} title="Start a run"><${Card}><${Empty} icon="key" title="Your role is read-only">
    <p>Starting a run needs the role operator in the namespace that is selected.</p><//><//><//>`;
  const at = problem ? placeOf(problem) : "";
  const wrong = (name) => (at === name ? problem.detail.replace(/^[a-z_]+: /, "") : "");
  const chosen = form.what === "plan" ? form.plan : form.endpoint.trim();
  const missing = [!chosen && (form.what === "plan" ? "a plan" : "an endpoint"), !file && "a file of items"].filter(Boolean);
  const input = ([name, label, placeholder, hint]) => html`<${Field} key=${name} label=${label} hint=${hint} error=${wrong(name)}>
    <input value=${form[name]} placeholder=${placeholder} data-test=${name} autocomplete="off"
      onInput=${(e) => set({ [name]: e.currentTarget.value })}/><//>`;

  return html`<${Page} title="Start a run" crumbs=${[["Runs", "/runs"]]} test="start-page"><div class="start">
    <div class="column">
      <${Card} title="1. What to run"><div class="column">
        <div class="segments" role="group" aria-label="What to run">${[["plan", "A saved plan"], ["endpoint", "One endpoint"]].map(
          ([id, label]) => html`<button type="button" key=${id} aria-pressed=${String(form.what === id)} data-test=${"what-" + id}
            onClick=${() => set({ what: id })}>${label}</button>`)}</div>
        ${form.what === "plan" ? html`<${PlanChoice} plans=${plans} value=${form.plan} onChange=${(plan) => set({ plan })}
          error=${wrong("plan")}/>` : html`<${EndpointChoice} endpoints=${endpoints} value=${form.endpoint}
          onChange=${(endpoint) => set({ endpoint })} error=${wrong("endpoint")}/>`}
      </div><//>
      <${Card} title="2. Items"><div class="column">
        <${DropZone} file=${file} onFile=${take} error=${at === "items"}/>
        ${file ? html`<${Preview} preview=${preview} keyColumn=${form.key} onKey=${(k) => set({ key: k })}
          error=${at === "items" ? problem : null}/>` : null}
        ${found && !preview.data && found.first?.length > 0 && html`<${Rows} rows=${found.first} keyColumn=${found.key}/>`}
      </div><//>
      <${Card} title="3. How"><div class="column">
        <div class="fields">
          <${Field} label="Name" hint="to find the run by" class="wide" error=${wrong("name")}><input value=${form.name} maxlength="200" data-test="name"
            autocomplete="off" onInput=${(e) => set({ name: e.currentTarget.value })}/><//>
          ${pacing.map(input)}${care.map(input)}
          <${Field} label="Duplicate keys" error=${wrong("on_duplicate")}><${Select} value=${form.on_duplicate} test="on_duplicate"
            onChange=${(v) => set({ on_duplicate: v })} options=${[["", "refuse"], ["skip", "skip"], ["allow", "allow"]]}/><//>
        </div>
        ${Number(form.canary) > 0 && html`<${Check} checked=${form.canary_auto_approve} onChange=${(v) => set({ canary_auto_approve: v })}
          test="canary_auto_approve">Approve automatically when no more of the canary failed than allowed<//>`}
        <${Params} params=${form.params} onChange=${(params) => set({ params })} error=${wrong("params")}/>
        <details class="start-more" open=${more.some(([n]) => at === n) || undefined}><summary>Retries, time and priority</summary>
          <div class="fields">${more.map(input)}</div></details>
      </div><//>
    </div>
    <aside class="start-side" aria-label="Start"><${Card} title="4. Try and start"><div class="column">
      <${Chain} plan=${form.what === "plan" && plans.data?.plans?.find((p) => p.name === form.plan.split("@")[0])}
        endpoint=${form.what === "endpoint" && form.endpoint}/>
      ${problem && !at && html`<${ErrorBox} error=${problem} test="start-error"/>`}
      ${problem && at && html`<p class="notice warn" role="status"><${Icon} name="warn"/>Not started: see what is marked.</p>`}
      ${found && html`<${Findings} found=${found}/>`}
      ${work ? html`<${Working} work=${work} give=${() => control.current.abort()}/>` : html`<div class="start-buttons">
        <${Button} icon="search" disabled=${missing.length > 0} onClick=${() => run("dry")} test="dry-run">Dry run<//>
        <${Button} kind="primary" icon="play" disabled=${missing.length > 0} onClick=${() => run("start")} test="go">Start<//></div>`}
      <p class="field-hint">${missing.length > 0 ? "Still needed: " + missing.join(" and ") + "." : found ? "The dry run stored nothing."
        : "A dry run reads the whole file and checks it all; nothing is stored or sent."}</p>
    </div><//></aside>
  </div><//>`;
}

function Working({ work, give }) {
  const words = work.again ? "The connection broke; it is sent again" : work.share < 1 ? `Sending the file: ${percent(work.share)}`
    : work.what === "dry" ? "Reading and checking" : "Storing the items";
  return html`<div class="column" role="status" data-test="working"><${Progress} share=${work.share} label="Upload" state="running"/>
    <div class="row between"><span>${words}…</span><${Button} small onClick=${give} test="give-up">Cancel<//></div></div>`;
}

function PlanChoice({ plans, value, onChange, error }) {
  if (plans.error) return html`<${ErrorBox} error=${plans.error} retry=${plans.reload}/>`;
  if (!plans.data) return html`<${Skeleton} lines=${2}/>`;
  const list = plans.data.plans || [];
  if (list.length === 0 && !value) {
    return html`<p class="muted">There is no saved plan. <${Link} to="/plans">Save one<//>, or run one endpoint.</p>`;
  }
  const options = list.map((p) => [p.name, `${p.name} (version ${p.version})`]);
  if (value && !list.some((p) => p.name === value)) options.unshift([value, value]);
  return html`<${Field} label="Plan" error=${error}><${Select} value=${value} onChange=${onChange} options=${options} test="plan"/><//>`;
}

const mostNames = 12; // at a time; typing narrows them

function EndpointChoice({ endpoints, value, onChange, error }) {
  const heard = (endpoints.data?.endpoints || []).filter((e) => e.kind === "endpoint" && (e.listeners || []).length > 0).map((e) => e.name);
  const typed = value.trim();
  const fitting = heard.includes(typed) ? heard : heard.filter((name) => name.toLowerCase().includes(typed.toLowerCase()));
  const meant = typed && fitting.length === 0 ? near(typed, heard) : "";
  const name = (n) => html`<button type="button" key=${n} class="btn small" data-test="listens"
    aria-pressed=${String(n === typed)} onClick=${() => onChange(n)}>${inert(n)}</button>`;
  const hint = endpoints.error ? "cannot tell which services listen" : !endpoints.data ? "looking for services…"
    : heard.length === 0 ? "no service listens now; a run waits for one"
    : fitting.length === 0 ? "no service listens on it now; a run would wait for one" : "services listen on these";
  return html`<div class="column">
    <${Field} label="Endpoint" error=${error} hint=${hint}>
      <input value=${value} placeholder="name" data-test="endpoint" autocomplete="off" spellcheck=${false}
        onInput=${(e) => onChange(e.currentTarget.value)}/><//>
    ${meant && html`<p role="status" class="row" data-test="meant">Did you mean ${name(meant)}?</p>`}
    ${fitting.length > 0 && html`<div class="row">${fitting.slice(0, mostNames).map(name)}${fitting.length > mostNames &&
      html`<span class="muted">and ${num(fitting.length - mostNames)} more: type a part of the name</span>`}</div>`}
  </div>`;
}

function Chain({ plan, endpoint }) {
  if (!plan && !endpoint) return null;
  return html`<${StepChain} steps=${plan ? stepsOf(plan) : [{ name: endpoint }]}/>`;
}

function Params({ params, onChange, error }) {
  const change = (i, at, value) => onChange(params.map((p, n) => (n === i ? p.map((v, m) => (m === at ? value : v)) : p)));
  return html`<fieldset class="start-params"><legend>Parameters</legend>
    ${params.map(([name, value], i) => html`<div class="row" key=${i}>
      <input aria-label="Name of the parameter" placeholder="name" value=${name} onInput=${(e) => change(i, 0, e.currentTarget.value)}/>
      <input aria-label="Value of the parameter" placeholder="value" value=${value} onInput=${(e) => change(i, 1, e.currentTarget.value)}/>
      <${Button} kind="ghost" icon="cross" label="Remove" onClick=${() => onChange(params.filter((_, n) => n !== i))}/></div>`)}
    ${error && html`<p class="field-error" role="alert">${inert(error)}</p>`}
    <${Button} small icon="start" onClick=${() => onChange([...params, ["", ""]])} test="add-param">Add a parameter<//>
  </fieldset>`;
}

// The result of a dry run: items, requests and oddities.
function Findings({ found }) {
  return html`<div class="column" data-test="findings">
    <dl class="start-facts">
      <div><dt>Items</dt><dd>${num(found.items)}</dd></div>
      <div><dt>Payload</dt><dd>${bytes(found.bytes)}</dd></div>
      ${found.skipped > 0 && html`<div><dt>Duplicates left out</dt><dd class="is-warn">${num(found.skipped)}</dd></div>`}
      ${found.held > 0 && html`<div><dt>Held for the canary</dt><dd>${num(found.held)}</dd></div>`}
    </dl>
    <div class="table-box"><table><thead><tr><th scope="col">Step</th><th scope="col" class="right">Requests</th>
      <th scope="col" class="right">Chunk</th><th scope="col" class="right">Services</th></tr></thead>
      <tbody>${found.steps.map((s) => html`<tr key=${s.name}><td><${Text} max=${40}>${s.name}<//><span class="under"><${Text}
          max=${40}>${s.endpoint || s.kind}<//></span></td>
        <td class="right">${num(s.requests)}</td>
        <td class="right nowrap">${s.chunk_auto ? "auto ≤ " : ""}${num(s.chunk)}</td>
        <td class=${"right " + (s.services === 0 ? "is-warn" : "")}>${s.services === undefined ? "–" : num(s.services)}</td></tr>`)}
      </tbody></table></div>
    ${found.existing && html`<p class="notice warn"><${Icon} name="warn"/>This start has made the run ${found.existing} already.</p>`}
    ${(found.warnings || []).length > 0 ? found.warnings.map((w) => html`<p class="notice warn"><${Icon} name="warn"/>
      <bdi>${w}</bdi></p>`) : html`<p class="notice ok"><${Icon} name="check"/>${plural(found.items, "item")} read; nothing is amiss.</p>`}
  </div>`;
}
