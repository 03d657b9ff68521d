// The list of dead letters, and the actions on those that wait.

import { html, useState } from "../html.js";
import { Badge, Button, Card, Empty, ErrorBox, Select, Skeleton, Table, Text, Time, confirm, toast } from "../ui.js";
import { setQuery } from "../router.js";
import { api, query as params } from "../api.js";
import { inert, num, plural } from "../format.js";
import { More, usePages } from "./paged.js";
import { Typed } from "./typed.js";
import { LetterDialog } from "./letter.js";

const most = 1000; // IDs per request
export const letterTones = { waiting: "bad", requeued: "info", reissued: "ok", dropped: "plain" };
const states = [["waiting", "Waiting"], ["requeued", "Requeued"], ["reissued", "Reissued"], ["dropped", "Dropped"], ["all", "Every state"]];

/** DeadLetters lists the waiting ones, unless another state is selected. */
export function DeadLetters({ query }) {
  const state = states.some(([s]) => s === query.state) ? query.state : "waiting";
  const pathOf = (after) => `/dead-letters${params({ endpoint: query.endpoint, state: state === "all" ? "" : state, after, limit: 50 })}`;
  const pages = usePages(pathOf, (d) => d.letters ?? [], (l) => l.id, [], { every: 5 });
  const [chosen, setChosen] = useState(new Set());
  const rows = pages.rows ?? [];
  const waiting = rows.filter((l) => l.state === "waiting");
  const selected = waiting.filter((l) => chosen.has(l.id)).slice(0, most);
  const done = () => {
    setChosen(new Set());
    pages.reload();
  };
  const all = selected.length > 0 && selected.length === waiting.length;
  const choose = (id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const selection = { ids: selected.map((l) => l.id) };
  return html`
    <div class="filterbar" role="group" aria-label="Filters">
      <${Typed} label="Endpoint" placeholder="Endpoint" value=${query.endpoint} search test="filter-endpoint" onChange=${(endpoint) => setQuery({ endpoint })} />
      <${Select} label="State" value=${state} options=${states} test="filter-state" onChange=${(s) => setQuery({ state: s === "waiting" ? "" : s })} />
      <span class="spacer"></span>
      ${state === "waiting" && rows.length > 0 && html`
        <${Button} small icon="repeat" role="operator" test="requeue-all" onClick=${() => requeue(everything(query), whichAll(query), done)}>Requeue all${query.endpoint && " of it"}…<//>
        <${Button} small kind="danger" icon="trash" role="operator" test="drop-all" onClick=${() => drop(everything(query), whichAll(query), done)}>Drop all${query.endpoint && " of it"}…<//>`}
    </div>
    ${selected.length > 0 &&
    html`<div class="bulk" role="region" aria-label="Chosen letters" data-test="bulk">
      <strong>${plural(selected.length, "letter")}</strong>
      <${Button} small kind="primary" icon="repeat" role="operator" test="requeue-chosen" onClick=${() => requeue(selection, plural(selected.length, "letter"), done)}>Requeue<//>
      <${Button} small kind="danger" icon="trash" role="operator" test="drop-chosen" onClick=${() => drop(selection, plural(selected.length, "letter"), done)}>Drop…<//>
      <${Button} small kind="ghost" onClick=${() => setChosen(new Set())}>Choose none<//>
    </div>`}
    <${ErrorBox} error=${pages.error} retry=${pages.reload} />
    <${Card} flush class="letter-list">
      ${!pages.rows && !pages.error && html`<div class="pad"><${Skeleton} lines=${6} /></div>`}
      ${pages.rows &&
      html`<${Table} caption="Dead letters" test="letters" rows=${rows} rowKey=${(l) => l.id} onOpen=${(l) => setQuery({ letter: l.id }, { replace: false })}
        empty=${html`<${Empty} icon="check" title=${pages.more ? "None among the newest 20,000 of all namespaces" : state === "waiting" ? "No dead letter waits" : "No letter fits"} test="empty" />`}
        columns=${[
          {
            key: "choose",
            title: html`<input type="checkbox" aria-label="Choose all that wait" checked=${all} disabled=${waiting.length === 0} onChange=${() => setChosen(all ? new Set() : new Set(waiting.map((l) => l.id)))} data-test="choose-all" />`,
            label: "",
            class: "choose",
            render: (l) => html`<input type="checkbox" aria-label=${`Choose letter ${l.id.slice(0, 18)}`} checked=${chosen.has(l.id)} disabled=${l.state !== "waiting"} onChange=${() => choose(l.id)} />`,
          },
          ...columns,
        ]} />`}
    <//>
    <${More} pages=${pages} />
    ${query.letter && html`<${LetterDialog} id=${query.letter} requeue=${requeue} drop=${drop} onChanged=${done} onClose=${() => setQuery({ letter: "" })} />`}
  `;
}

const everything = ({ endpoint }) => (endpoint ? { endpoint } : { all: true });
const whichAll = ({ endpoint }) => (endpoint ? html`all letters that wait of <strong><${Text} max=${60}>${endpoint}<//></strong>` : "all letters that wait");

const columns = [
  {
    key: "cause",
    title: "Cause",
    label: "",
    class: "wide",
    render: (l) => html`<button type="button" class="link letter-open" onClick=${() => setQuery({ letter: l.id }, { replace: false })}><code>${inert(l.cause, 60)}</code></button>
      <p class="clamp muted"><bdi>${inert(l.message ?? "", 400)}</bdi></p>`,
  },
  { key: "endpoint", title: "Endpoint", render: (l) => html`<${Text} max=${40}>${l.endpoint}<//>` },
  { key: "state", title: "State", render: (l) => html`<${Badge} tone=${letterTones[l.state]}>${l.state}<//>` },
  { key: "service", title: "Given up by", hide: "narrow", render: (l) => html`<${Text} max=${28} class="muted">${l.service?.split(" ")[0] ?? "–"}<//>` },
  { key: "requeued", title: "Requeued", align: "right", hide: "narrow", render: (l) => html`<span class=${"num" + (l.requeued ? "" : " faint")}>${num(l.requeued)}</span>` },
  { key: "at", title: "Died", align: "right", render: (l) => html`<${Time} at=${l.at} />` },
];

/** requeue requeues letters after a confirmation, and reports refused ones. */
export async function requeue(selection, which, done, { force = false } = {}) {
  const answer = await confirm({
    title: force ? "Requeue anyway?" : "Requeue?",
    body: html`<p>${which} ${typeof which === "string" && which.startsWith("1 ") ? "goes" : "go"} to the endpoint again, as a new request. Should it die again, that is another letter.</p>`,
    action: "Requeue",
    act: () => api.post("/dead-letters/requeue", { ...selection, force }),
    test: "confirm-requeue",
  });
  if (!answer) return false;
  const refused = answer.refused_total ?? 0;
  if (refused === 0) toast(answer.requeued > 0 ? `${plural(answer.requeued, "letter")} requeued` : "No dead letter waits");
  else {
    const reasons = [...new Set((answer.refused ?? []).map((r) => r.reason))].slice(0, 3).join("; ");
    toast(`${plural(answer.requeued, "letter")} requeued, ${num(refused)} refused: ${reasons}`, { tone: "warn" });
  }
  done?.();
  return true;
}

/** drop drops letters after a confirmation. */
export async function drop(selection, which, done) {
  const answer = await confirm({
    title: "Drop permanently?",
    body: html`<p>${which} ${typeof which === "string" && which.startsWith("1 ") ? "is" : "are"} dropped, and the bodies are deleted. This cannot be undone.</p>`,
    action: "Drop",
    danger: true,
    act: () => api.post("/dead-letters/drop", selection),
    test: "confirm-drop",
  });
  if (!answer) return false;
  toast(`${plural(answer.dropped, "letter")} dropped`);
  done?.();
  return true;
}
