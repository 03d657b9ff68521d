// An endpoint's settings: the value in force, and who or what set it.

import { html, useEffect, useId, useRef, useState } from "../html.js";
import { conflict } from "../api.js";
import { Button, Card, Text, Time, confirm } from "../ui.js";
import { inert, num } from "../format.js";
import { isEndpoint, rate } from "./rates.js";

/** Controls are the settings of an endpoint. set posts a change; audit has earlier changes of endpoints. */
export function Controls({ endpoint: e, set, audit = [] }) {
  const mine = audit.filter((a) => a.subject === e.name);
  const by = (name) => mine.find((a) => a.after && name in a.after);
  return html`<${Card} title="Controls" test="controls">
    <div class="controls">
      ${isEndpoint(e) &&
      html`<${Control}
        name="Concurrency" field="concurrency" value=${e.concurrency} most=${1024} unit="in each instance"
        now=${e.concurrency > 0 ? `${num(e.concurrency)} in each instance` : ownConcurrency(e)}
        why=${e.concurrency > 0 ? html`<${Author} entry=${by("concurrency")} />` : "left to the services"}
        none="0 leaves it to the services" set=${set} />`}
      <${Control}
        name="Requests in flight" field="max_in_flight" value=${e.max_in_flight} most=${10000} unit="over all runs"
        now=${e.max_in_flight > 0 ? `at most ${num(e.max_in_flight)}` : "no limit"}
        why=${html`${e.max_in_flight > 0 && html`<${Author} entry=${by("max_in_flight")} />; `}${learned(e.pace)}`}
        none="0 is no limit" set=${set} />
      <${Control}
        name="Rate" field="rate" value=${e.rate_limit} most=${1e9} unit="items a second, over all runs" decimals
        now=${e.rate_limit > 0 ? `at most ${rate(e.rate_limit)}` : "no limit"}
        why=${html`${e.rate_limit > 0 && html`<${Author} entry=${by("rate")} />; `}${e.pace?.rate ? `nodes found that it takes ${rate(e.pace.rate)}` : "no service said that it has too much"}`}
        none="0 is no limit" set=${set} />
      <div class="control">
        <h3>Size of requests</h3>
        <p class="control-now">${e.pace?.chunk_cap ? `at most ${num(e.pace.chunk_cap)} items` : "by each run"}</p>
        <p class="control-why">${e.pace?.chunk_cap
          ? html`larger requests failed entirely; this applies until <${Time} at=${e.pace.chunk_cap_until} mode="clock" />`
          : e.pace?.chunk ? `for automatic steps ${num(e.pace.chunk)} items do best` : "nodes have not had to find one"}</p>
        ${e.pace?.chunk_cap > 0 && html`<div class="control-set"><${Button} small role="operator" test="forget-cap" onClick=${() => forget(e, set)}>Forget the cap<//></div>`}
      </div>
    </div>
  <//>`;
}

const forget = (e, set) =>
  confirm({
    title: "Forget the cap?",
    body: `Requests may have more than ${num(e.pace.chunk_cap)} items again. If they still fail entirely, they are halved and the cap is found again.`,
    action: "Forget it",
    act: () => set({ chunk_cap: 0 }, "The cap is forgotten"),
  });

function ownConcurrency(e) {
  const own = [...new Set(e.listeners.map((l) => l.concurrency).filter((n) => n > 0))].sort((a, b) => a - b);
  if (own.length === 0) return "not said";
  return own.length === 1 ? `${num(own[0])} in each instance` : `${num(own[0])} to ${num(own[own.length - 1])} in each instance`;
}

const learned = (p) => (p ? `${num(p.requests_out)} in progress; nodes found that it takes ${num(p.in_flight)}` : "nodes have not had to find a pace");

function Author({ entry }) {
  if (!entry) return "set by an operator";
  return html`set by <${Text} max=${40}>${entry.actor}<//>, <${Time} at=${entry.at} />`;
}

// Control shows a setting, and a field while it is edited.
function Control({ name, field, value, most, unit, now, why, none, decimals = false, set }) {
  const [draft, setDraft] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const id = useId();
  const input = useRef(null);
  const begun = useRef(value); // what the change began from
  useEffect(() => input.current?.select(), [draft === null]);
  const save = async (e) => {
    e.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await set({ [field]: Number(draft), if_was: { [field]: String(begun.current) } }, `${name} is set`);
      setDraft(null);
    } catch (err) {
      const other = conflict(err, draft);
      if (other) begun.current = other.has;
      setError(other ?? err);
    } finally {
      setBusy(false);
    }
  };
  return html`<div class="control" data-test=${`control-${field}`}>
    <h3 id=${id}>${name}</h3>
    <p class="control-now" data-test=${`now-${field}`}>${now}</p>
    <p class="control-why">${why}</p>
    <div class="control-set">
      ${draft === null
        ? html`<${Button} small role="operator" test=${`change-${field}`} label=${`Change: ${name}`} onClick=${() => {
          begun.current = value;
          setDraft(String(value));
        }}>Change<//>`
        : html`<form onSubmit=${save}>
            <input ref=${input} type="number" min="0" max=${most} step=${decimals ? "any" : 1} required value=${draft} aria-labelledby=${id}
              onInput=${(e) => setDraft(e.currentTarget.value)} onKeyDown=${(e) => e.key === "Escape" && setDraft(null)} data-test=${`input-${field}`} />
            <${Button} small kind="primary" type="submit" busy=${busy} test=${`set-${field}`}>Set<//>
            <${Button} small kind="ghost" onClick=${() => setDraft(null)}>Cancel<//>
            <span class="control-hint">${unit}; ${none}</span>
          </form>`}
      ${error && html`<p class="bad-text" role="alert">${inert(error.detail || error.message, 300)}</p>`}
    </div>
  </div>`;
}
