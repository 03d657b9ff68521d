// The dialog to rerun items: a sample first, smaller requests, another endpoint; a dry run; then the progress.

import { html, useEffect, useId, useState } from "../html.js";
import { api, segment } from "../api.js";
import { Button, Check, Dialog, ErrorBox, Field, Text } from "../ui.js";
import { inert, num, plural } from "../format.js";
import { Follow } from "./follow.js";
import { StepResets } from "./stepresets.js";
import { sampleFrom, sampleOf, suggestion } from "./suggestion.js";

/**
 * RerunDialog reruns a selection of items. select is the API's selection ({groups}, {keys}, {failed} …), items their
 * number, what their name in words; steps are the names of their steps.
 */
export function RerunDialog({ run, select, items, what, group, onClose }) {
  const steps = run.steps.filter((s) => !group || s.name === group.step);
  const step = steps.length === 1 ? steps[0] : null;
  const [form, setForm] = useState({
    canaryOn: items >= sampleFrom, canary: String(sampleOf(items)), auto: false, chunk: "", inFlight: "",
    endpoint: "", reason: "",
  });
  const [known, setKnown] = useState({ endpoints: [], pace: null });
  const [tried, setTried] = useState(null);
  const [started, setStarted] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState("");
  const [before, setBefore] = useState(null);
  const id = useId();
  useEffect(() => {
    api.get(`/runs/${segment(run.id)}/errors`).then(({ groups }) => setBefore(groups), () => {}); // to compare with
    api.get("/endpoints").then(
      ({ endpoints }) => setKnown({ endpoints, pace: endpoints.find((e) => e.name === step?.endpoint)?.pace }),
      () => {}, // optional: the dialog works without them
    );
  }, []);
  const hint = suggestion(group, step, known.pace);
  const put = (name, value) => {
    setForm({ ...form, [name]: value });
    setTried(null);
    setError(null);
  };
  const typed = (name) => (e) => put(name, e.currentTarget.value);
  const send = async (dry) => {
    setBusy(dry ? "dry" : "run");
    setError(null);
    try {
      const answer = await api.post(`/runs/${segment(run.id)}/rerun`, { ...select, ...settings(form), dry_run: dry });
      if (dry) setTried(answer);
      else setStarted(answer);
    } catch (err) {
      setError(err);
    } finally {
      setBusy("");
    }
  };
  if (started) {
    return html`<${Dialog} title="Running again" onClose=${onClose} test="rerun-follow">
      <${Follow} run=${run.id} started=${started} select=${select} before=${before} onClose=${onClose} />
    <//>`;
  }
  const submit = (e) => {
    e.preventDefault();
    send(e.submitter?.value === "dry");
  };
  const footer = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} type="submit" form=${id} value="dry" busy=${busy === "dry"} test="dry-run">Dry run<//>
    <${Button} kind="primary" icon="repeat" role="operator" type="submit" form=${id} value="run" busy=${busy === "run"} test="rerun-go">Run again<//>`;
  return html`<${Dialog} title="Run items again" onClose=${onClose} footer=${footer} test="rerun-dialog">
    <form class="rerun" id=${id} onSubmit=${submit}>
      <p class="rerun-what"><strong>${plural(items, "item")}</strong> of <${Text} max=${60}>${run.name || run.plan}<//>: ${what}</p>
      <${BadParts} groups=${before} select=${select} />
      <fieldset class="rerun-canary">
        <legend class="sr">Canary</legend>
        <${Check} checked=${form.canaryOn} onChange=${(on) => put("canaryOn", on)} test="canary">Run a canary of a few items first<//>
        ${form.canaryOn &&
        html`<div class="rerun-sub">
          <label class="inline">of <input type="number" min="1" max=${items} required value=${form.canary} onInput=${typed("canary")} aria-label="items of the canary" data-test="canary-items" /> items; the rest waits for your approval</label>
          <${Check} checked=${form.auto} onChange=${(on) => put("auto", on)}>or is released when no more of the canary fail than ${run.max_failed ? html`<${Text} max=${20}>${run.max_failed}<//>` : "the run"} allows<//>
        </div>`}
      </fieldset>
      <div class="rerun-grid">
        <${Field} label="Items in a request" hint=${chunkHint(step, hint, form.chunk, put)}>
          <input value=${form.chunk} onInput=${typed("chunk")} pattern="[1-9][0-9]{0,3}|auto" title="1 to 8192, or auto" placeholder="as before" autocomplete="off" data-test="chunk" />
        <//>
        <${Field} label="Requests in flight" hint=${step && `now ${sizing(step.settings, "in_flight")}`}>
          <input value=${form.inFlight} onInput=${typed("inFlight")} pattern="[1-9][0-9]{0,4}|auto" title="1 to 10000, or auto" placeholder="as before" autocomplete="off" data-test="in-flight" />
        <//>
        <${Field} label="Endpoint" hint=${step ? html`now <${Text} max=${40}>${step.endpoint}<//>` : "of every step that this is about"}>
          <input value=${form.endpoint} onInput=${typed("endpoint")} list=${id + "-endpoints"} maxlength="64" placeholder="as before" autocomplete="off" data-test="endpoint" />
        <//>
        <${Field} label="Reason" hint="for the audit log">
          <input value=${form.reason} onInput=${typed("reason")} maxlength="500" autocomplete="off" data-test="reason" />
        <//>
      </div>
      <datalist id=${id + "-endpoints"}>${known.endpoints.filter((e) => e.listeners.length).map((e) => html`<option key=${e.name} value=${e.name}></option>`)}</datalist>
      <${ErrorBox} error=${error} />
      <div aria-live="polite">${tried && html`<${Tried} answer=${tried} />`}</div>
    </form>
  <//>`;
}

// BadParts names the failures that a rerun does not help.
function BadParts({ groups, select }) {
  const bad = (groups ?? []).filter((g) => g.resets && (!select.groups || select.groups.includes(g.id)));
  return bad.map((g) => html`<p class="warn-text" key=${g.step + g.id} data-test="bad-part">${plural(g.count, "item")} of step <${Text} max=${40}>${g.step}<//>
    failed for the part of step ${inert(g.resets.join(", "), 80)}, and would get it again: reset that step instead.</p>`);
}

// chunkHint shows the current request size, and suggests a better one.
function chunkHint(step, hint, chosen, put) {
  const now = step && `now ${sizing(step.settings, "chunk")}`;
  if (!hint) return now;
  return html`${now && `${now}; `}${inert(hint.why, 120)}${String(hint.chunk) !== chosen &&
  html` <button type="button" class="suggest" onClick=${() => put("chunk", String(hint.chunk))} data-test="suggest">Use ${num(hint.chunk)}</button>`}`;
}

function sizing(settings, name) {
  return settings[name + "_auto"] ? `auto, up to ${num(settings[name])}` : num(settings[name]);
}

// settings converts the form for the API; empty fields stay unchanged.
function settings(form) {
  const set = {};
  if (form.canaryOn) {
    set.canary = Number(form.canary);
    set.canary_auto_approve = form.auto;
  }
  if (form.chunk) set.chunk = size(form.chunk);
  if (form.inFlight) set.in_flight = size(form.inFlight);
  if (form.endpoint) set.endpoint = form.endpoint;
  if (form.reason) set.reason = form.reason;
  return set;
}

const size = (text) => (text === "auto" ? text : Number(text));

function said(a) {
  const held = a.held > 0 ? `; ${num(a.items - a.held)} of them first, and ${num(a.held)} held back until the canary has passed` : "";
  return `Dry run: ${plural(a.items, "item")} would run again as generation ${a.generation}, in ${plural(a.slices, "request")}${held}. Nothing was changed.`;
}

function Tried({ answer: a }) {
  return html`<div class="tried" data-test="tried">
    <p>${said(a)}</p>
    <${StepResets} steps=${a.steps} />
    ${(a.warnings ?? []).map((w) => html`<p class="warn-text" key=${w}>${inert(w)}</p>`)}
  </div>`;
}
