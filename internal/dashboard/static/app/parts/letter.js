// A dead letter or a quarantined message: facts, headers and body.

import { html, useState } from "../html.js";
import { Badge, Button, Copy, Dialog, ErrorBox, Skeleton, Text, Time, useLoad } from "../ui.js";
import { Link } from "../router.js";
import { segment } from "../api.js";
import { bytes, inert, num, plural } from "../format.js";
import { JsonView, Long, TextView } from "./jsonview.js";
import { endpointPath } from "./target.js";

/** LetterDialog shows a dead letter. requeue and drop ask first; onChanged is called after them. */
export function LetterDialog({ id, requeue, drop, onChanged, onClose }) {
  const [full, setFull] = useState(false);
  const { data: l, error, reload } = useLoad(`/dead-letters/${segment(id)}${full ? "?full=true" : ""}`);
  const done = () => {
    onChanged();
    onClose();
  };
  const one = "1 letter";
  const footer = html`${l?.state === "waiting" &&
    html`<${Button} kind="danger" icon="trash" role="operator" test="drop" onClick=${() => drop({ ids: [l.id] }, one, done)}>Drop…<//>
      ${l.requeued >= 3
        ? html`<${Button} kind="primary" icon="repeat" role="operator" test="requeue" title="It has died three times already" onClick=${() => requeue({ ids: [l.id] }, one, done, { force: true })}>Requeue anyway<//>`
        : html`<${Button} kind="primary" icon="repeat" role="operator" test="requeue" onClick=${() => requeue({ ids: [l.id] }, one, done)}>Requeue<//>`}`}
    <${Button} onClick=${onClose}>Close<//>`;
  return html`<${Dialog} wide title="Dead letter" onClose=${onClose} footer=${footer} test="letter-dialog">
    <${ErrorBox} error=${error} retry=${reload} />
    ${!l && !error && html`<${Skeleton} lines=${8} />`}
    ${l && html`<${LetterFacts} letter=${l} /><${Headers} headers=${l.headers} /><${Body} body=${l.body} full=${full} onFull=${() => setFull(true)} />`}
  <//>`;
}

function LetterFacts({ letter: l }) {
  return html`<div class="letter-head"><code>${inert(l.cause, 100)}</code> <${Badge} tone=${{ waiting: "bad", requeued: "info", reissued: "ok" }[l.state] ?? "plain"}>${l.state}<//></div>
    ${l.message && html`<p class="letter-message"><${Long} text=${l.message} most=${1000} /></p>`}
    ${l.state === "reissued" && html`<p class="muted">Its items were retried automatically, in smaller requests: no action is needed.</p>`}
    <dl class="facts">
      <div><dt>endpoint</dt><dd><${Link} to=${endpointPath(l.endpoint)}><${Text} max=${60}>${l.endpoint}<//><//></dd></div>
      <div><dt>died</dt><dd><${Time} at=${l.at} /> (<${Time} at=${l.at} mode="clock" />)</dd></div>
      <div><dt>${l.state}</dt><dd><${Time} at=${l.changed_at} mode="for" /></dd></div>
      <${Fact} name="mode" value=${l.mode} />
      ${l.run && html`<${Fact} name="run" value=${l.run} code />`}
      <${Fact} name="slice" value=${l.slice} code />
      ${l.root !== l.slice && html`<${Fact} name="root slice" value=${l.root} code />`}
      <${Fact} name="waited for by" value=${l.stack} />
      <${Fact} name="origin" value=${l.origin} />
      <${Fact} name="abandoned by" value=${l.service} />
      ${l.items > 0 && html`<${Fact} name="items" value=${num(l.items)} />`}
      ${l.deliveries > 0 && html`<${Fact} name="deliveries" value=${num(l.deliveries)} />`}
      <${Fact} name="requeued" value=${plural(l.requeued, "time")} />
      <div><dt>letter</dt><dd><code>${l.id}</code> <${Copy} text=${l.id} label="Copy the id" /></dd></div>
    </dl>`;
}

export function Fact({ name, value, code = false }) {
  if (value === undefined || value === null || value === "") return null;
  return html`<div><dt>${name}</dt><dd>${code ? html`<code><${Text} max=${300}>${value}<//></code>` : html`<${Text} max=${300}>${value}<//>`}</dd></div>`;
}

export function Headers({ headers }) {
  const all = Object.entries(headers ?? {}).flatMap(([name, values]) => values.map((v) => [name, v]));
  if (all.length === 0) return null;
  return html`<details class="headers"><summary>${plural(all.length, "header")}</summary>
    <dl class="facts">${all.map(([name, v], i) => html`<div key=${i}><dt><bdi>${inert(name, 80)}</bdi></dt><dd><${Long} text=${v} most=${300} /></dd></div>`)}</dl></details>`;
}

export function Body({ body: b, full, onFull }) {
  if (!b || b.size === 0) return html`<p class="muted">It has no body.</p>`;
  return html`<section class="letter-body" aria-label="Body">
    <h3>Body <span class="muted">${bytes(b.size)}${b.unpacked && `, unpacked from ${inert(b.unpacked, 20)}`}</span></h3>
    ${b.json !== undefined
      ? html`<${JsonView} text=${JSON.stringify(b.json)} label="body" />`
      : html`<${TextView} text=${b.text ?? b.base64 ?? ""} label=${b.text === undefined ? "body, as base64" : "body"} />`}
    ${b.truncated && !full && onFull && html`<p><${Button} small onClick=${onFull}>Load all of it<//></p>`}
  </section>`;
}
