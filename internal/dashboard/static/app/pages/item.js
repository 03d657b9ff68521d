// An item of a run with its history: payload and, per step, results, times, services and attempts.

import { html, useRef, useState } from "../html.js";
import { Badge, Button, ButtonLink, Card, Empty, ErrorBox, Page, Select, Skeleton, StateBadge, Text, Time, useLoad, toast } from "../ui.js";
import { go, setQuery } from "../router.js";
import { api, segment, query as params } from "../api.js";
import { duration, num, plural, servedBy } from "../format.js";
import { useKeys } from "../keys.js";
import { at, parse, write } from "../parts/jsontext.js";
import { JsonView } from "../parts/jsonview.js";
import { Explanation } from "../parts/explain.js";
import { ItemStep, itemStates } from "../parts/itemstep.js";
import { RerunDialog } from "../parts/rerun.js";
import { ResetDialog } from "../parts/reset.js";
import { CorrectDialog } from "../parts/correct.js";
import { AcceptDialog } from "../parts/accept.js";
import { nextFailed } from "../parts/neighbors.js";
import { itemApi, itemPath } from "../parts/itempath.js";
import { columns } from "../parts/stepgraph.js";

const moving = 2; // seconds between polls while something is expected,
const still = 20; // and otherwise

/** Item is the page /runs/{run}/item?key=…, with &ordinal=… for a duplicate key. */
export default function Item({ params: { run: id }, query }) {
  const [open, setOpen] = useState(false);
  const run = useLoad(`/runs/${segment(id)}`, [], { every: still });
  const found = useStory(id, query.key, open ? moving : still);
  const items = found.data?.doc.items ?? [];
  const nth = Math.max(0, items.findIndex((i) => String(i.ordinal) === query.ordinal));
  const item = items[nth];
  const unsettled = Boolean(item) && item.steps.some((s) => !["done", "failed", "skipped"].includes(s.state) || s.stale);
  if (unsettled !== open) setOpen(unsettled);
  const why = useLoad(unsettled ? `/runs/${segment(id)}/explain${params({ item: query.key })}` : "", [unsettled], { every: 5 });
  const [dialog, setDialog] = useState(null);
  const name = run.data ? run.data.name || run.data.plan : id;
  const walk = useWalk(run.data?.id ?? id, item, run.data?.items);
  const close = () => {
    setDialog(null);
    found.reload();
    run.reload();
  };
  if (query.key === undefined) {
    return html`<${Page} title="Item"><${Card}><${Empty} icon="search" title="Which item?"><p>Give its key in the address: <code>/runs/RUN/item?key=KEY</code></p><//><//><//>`;
  }
  return html`<${Page}
    title=${`Item ${query.key}`}
    heading=${html`<span class="item-key"><span class="muted">Item</span> <${Text} max=${160}>${query.key}<//></span>`}
    crumbs=${[["Runs", "/runs"], [name, `/runs/${segment(id)}`], ...(run.data?.failed > 0 ? [["Errors", `/runs/${segment(id)}/errors`]] : [])]}
    subtitle=${item && html`#${item.ordinal}${run.data && ` of ${plural(run.data.items, "item")}, counted from 0`}`}
    actions=${html`<span class="pair">
        <${Button} icon="left" label="Previous failed item" title="Previous failed item ([)" test="previous-failed" onClick=${() => walk(-1)} disabled=${!item} />
        <${Button} icon="right" label="Next failed item" title="Next failed item (])" test="next-failed" onClick=${() => walk(1)} disabled=${!item} />
      </span>
      <${Button} kind="primary" icon="repeat" role="operator" disabled=${!item || !run.data} test="rerun-item" onClick=${() =>
        setDialog({ rerun: true })}>Run again…<//>`}
    test="item-page"
  >
    <${ErrorBox} error=${found.error} retry=${found.reload} />
    ${found.error?.status === 404 && html`<${Card}><${Empty} icon="search" title="There is no such item in this run"><p><${ButtonLink} small to=${`/runs/${segment(id)}`}>To the run<//></p><//><//>`}
    ${!item && !found.error && html`<${Card}><${Skeleton} lines=${8} /><//>`}
    ${items.length > 1 && html`<${Twins} items=${items} nth=${nth} />`}
    ${item &&
    html`<div class="item-columns">
      <div class="item-main">
        ${item.steps.length > 1 && html`<${Path} steps=${item.steps} />`}
        ${why.data && unsettled && why.data.groups?.length > 0 && html`<${Card} title="What it waits for" test="item-why"><${Explanation} explanation=${why.data} several=${item.steps.length > 1} /><//>`}
        ${item.steps.map(
          (step, i) => html`<${ItemStep}
            key=${step.name}
            run=${run.data?.id ?? id}
            item=${item}
            step=${step}
            node=${at(found.data.tree, "items", nth, "steps", i, "result")}
            onReset=${() => setDialog({ reset: step })}
            onAccept=${() => setDialog({ accept: step })}
          />`,
        )}
      </div>
      <aside class="item-side" aria-label="The item">
        <${Glance} item=${item} />
        <${Card} title="Payload" test="payload" actions=${html`<${Button} small icon="file" role="operator" disabled=${items.length > 1} title=${items.length > 1 ? "Several items have this key, so it is ambiguous" : undefined} test="correct-item" onClick=${() =>
          setDialog({ correct: write(at(found.data.tree, "items", nth, "payload")), since: item.earlier_payloads?.[0]?.generation ?? 0 })}>Correct the data…<//>`}><${JsonView} node=${at(found.data.tree, "items", nth, "payload")} label="payload" /><//>
        ${item.earlier_payloads?.length > 0 && html`<${Card} title="Before it was corrected" test="earlier-payloads">
          ${item.earlier_payloads.map((e, i) => html`<div key=${e.generation}>
            <p class="muted">until generation ${e.generation}, <${Time} at=${e.at} /> by <${Text} max=${60}>${e.actor}<//>${e.reason && html`: <${Text} max=${200}>${e.reason}<//>`}</p>
            <${JsonView} node=${at(found.data.tree, "items", nth, "earlier_payloads", i, "payload")} label=${`payload until generation ${e.generation}`} />
          </div>`)}
        <//>`}
      </aside>
    </div>`}
    ${dialog?.rerun && html`<${RerunDialog} run=${run.data} select=${{ keys: [query.key] }} items=${Math.max(items.length, 1)} what=${html`item <${Text} max=${60}>${query.key}<//>`} onClose=${close} />`}
    ${dialog?.correct && html`<${CorrectDialog} run=${run.data?.id ?? id} itemKey=${query.key} payload=${dialog.correct} since=${dialog.since} onClose=${close} />`}
    ${dialog?.reset && html`<${ResetDialog} run=${run.data?.id ?? id} step=${dialog.reset.name} select=${{ keys: [query.key] }} what=${html`<${Text} max=${60}>${query.key}<//>`} twins=${items.length} onClose=${close} />`}
    ${dialog?.accept && run.data && html`<${AcceptDialog} run=${run.data} select=${{ keys: [query.key], step: dialog.accept.name }} items=${Math.max(items.length, 1)} withdraw=${Boolean(dialog.accept.accepted)} what=${html`item <${Text} max=${60}>${query.key}<//>`} onClose=${close} />`}
  <//>`;
}

// useStory loads the items of a key as JSON text, to keep numbers and the order of members. Unchanged data is not
// resent.
function useStory(run, key, every) {
  const last = useRef(null);
  return useLoad(
    key === undefined
      ? ""
      : async ({ signal }) => {
          const path = itemApi(run, key);
          const held = last.current?.path === path ? last.current : null;
          const answer = await api.raw(path, { signal, headers: held?.etag ? { "If-None-Match": held.etag } : {} });
          if (answer.status === 304) return held.story;
          const text = await answer.text();
          last.current = { path, etag: answer.headers.get("ETag"), story: { doc: JSON.parse(text), tree: parse(text) } };
          return last.current.story;
        },
    [run, key],
    { every },
  );
}

function useWalk(run, item, items) {
  const busy = useRef(false);
  const walk = async (by) => {
    if (!item || busy.current) return;
    busy.current = true;
    try {
      const to = await nextFailed(run, item.ordinal, by, items);
      if (to) go(itemPath(run, to.key, to.ordinal), { replace: true });
      else toast(by > 0 ? "No failed item comes after this one" : "No failed item comes before this one", { tone: "info" });
    } catch (err) {
      toast(err, { tone: "bad" });
    } finally {
      busy.current = false;
    }
  };
  useKeys([["]", "Next failed item", () => walk(1)], ["[", "Previous failed item", () => walk(-1)]], [run, item?.ordinal, items]);
  return walk;
}

function Twins({ items, nth }) {
  return html`<div class="filterbar"><label class="inline">${num(items.length)} items of the run have this key:
    <${Select} value=${String(items[nth].ordinal)} label="Which of them" test="twins" onChange=${(ordinal) => setQuery({ ordinal })}
      options=${items.map((i) => [String(i.ordinal), `#${i.ordinal}, ${i.state}`])} /></label></div>`;
}

// Glance summarizes the item in a few numbers.
function Glance({ item }) {
  const attempts = item.steps.flatMap((s) => s.attempts);
  const first = attempts.map((a) => a.created_at).sort()[0];
  const last = item.steps.map((s) => s.recorded_at).filter(Boolean).sort().at(-1);
  const generations = Math.max(0, ...item.steps.map((s) => s.generation ?? 0), ...attempts.map((a) => a.generation));
  const services = [...new Set(item.steps.map((s) => s.service && servedBy(s.service)).filter(Boolean))];
  const tones = { done: "ok", failed: "bad" };
  return html`<${Card} title="At a glance" test="glance" actions=${html`<${Badge} tone=${tones[item.state] ?? "busy"} test="item-state">${item.state}<//>`}>
    <dl class="facts">
      <div><dt>steps</dt><dd>${num(item.steps.filter((s) => s.state === "done").length)} of ${num(item.steps.length)} done</dd></div>
      <div><dt>attempts</dt><dd>${num(attempts.length)}${generations > 1 && html` <span class="muted">over ${num(generations)} generations</span>`}</dd></div>
      ${first && html`<div><dt>first asked</dt><dd><${Time} at=${first} /></dd></div>`}
      ${last && html`<div><dt>last outcome</dt><dd><${Time} at=${last} />${first && html` <span class="muted">${duration((Date.parse(last) - Date.parse(first)) / 1000)} later</span>`}</dd></div>`}
      ${services.length > 0 && html`<div><dt>made by</dt><dd class="tags">${services.map((s) => html`<span class="tag" key=${s}><${Text} max=${40}>${s}<//></span>`)}</dd></div>`}
    </dl>
  <//>`;
}

// Path shows the steps in a line with the item's state in each. Parallel steps are stacked.
function Path({ steps }) {
  return html`<nav class="item-path" aria-label="Steps of the item"><ol>
    ${columns(steps).map((column, i) => html`<li key=${i}>${column.map(
      (s) => html`<a key=${s.name} href=${`#step-${s.step}`} onClick=${(e) => {
          e.preventDefault();
          document.getElementById(`step-${s.step}`)?.closest("section").scrollIntoView({ block: "start" });
        }}><${Text} max=${30}>${s.name}<//> <${StateBadge} state=${itemStates(s)} /></a>`,
    )}</li>`)}
  </ol></nav>`;
}
