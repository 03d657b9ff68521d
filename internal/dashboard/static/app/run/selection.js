// Actions on a range of items selected on the map: show, reset, rerun.
import { html, useEffect, useMemo, useState } from "../html.js";
import { api, query, segment } from "../api.js";
import { Button, Card, ErrorBox, Skeleton, StateBadge, Text } from "../ui.js";
import { Link, go } from "../router.js";
import { num, plural } from "../format.js";
import { RerunDialog } from "../parts/rerun.js";
import { itemPath } from "../parts/itempath.js";
import { STATES } from "../heatmap/palette.js";
import { numberOf, stateWord } from "../heatmap/tip.js";
import { ResetDialog } from "./reset.js";

const PAGE = 50;
const FIRST = 5;

/** Selection is the panel of a range [from, to] of ordinals. plane: of states, or null for another layer. */
export function Selection({ run, step, range, plane, onClose, onZoom }) {
  const [from, to] = range;
  const size = to - from + 1;
  const [listed, setListed] = useState(false);
  const [dialog, setDialog] = useState("");
  const over = run.state === "cancelled";
  const why = over ? "The run was cancelled: resume it first" : undefined;
  useEffect(() => setListed(false), [from, to]);
  const counts = useMemo(() => plane && count(plane, from, to), [plane, plane?.version, from, to]);
  return html`<${Card} class="selection" test="selection" label="Selected items"
      title=${html`${plural(size, "item")} selected`} actions=${html`
      <${Button} small kind="ghost" icon="search" label="Show them large" title="Show them large" onClick=${onZoom}
          test="selection-zoom" />
      <${Button} small kind="ghost" icon="cross" label="Drop the selection" title="Drop the selection (Esc)"
          onClick=${onClose} test="selection-close" />`}>
    <p class="muted selection-range">#${num(from)} to #${num(to)}${step && html` at step <${Text}
        max=${40}>${step}<//>`}</p>
    ${counts && html`<div class="selection-counts"
        data-test="selection-counts">${counts.map(({ state, items }) => html`<span key=${state.value}><i
        class=${"swatch state-" + state.value}></i>${num(items)} ${state.text.toLowerCase()}</span>`)}</div>`}
    <div class="card-buttons">
      <${Button} icon="search" onClick=${() => setListed(!listed)} aria-expanded=${String(listed)}
          test="inspect">${listed ? "Hide the items" : "Inspect"}<//>
      <${Button} icon="reload" role="operator" disabled=${over} title=${why} onClick=${() => setDialog("reset")} test="reset">Reset a part…<//>
      <${Button} icon="repeat" role="operator" disabled=${over} title=${why} onClick=${() => setDialog("rerun")} test="rerun-range">Run again…<//>
    </div>
    <${Items} key=${`${from}-${to}-${step}-${listed}`} run=${run} step=${step} from=${from} to=${to}
        page=${listed ? PAGE : FIRST} paged=${listed} />
    ${dialog === "rerun" && html`<${RerunDialog} run=${run} items=${size}
        what=${html`#${num(from)} to #${num(to)}${step && ` at step ${step}`}`}
      select=${{ ranges: [[from, to]], ...(step ? { step } : {}) }} onClose=${() => setDialog("")} />`}
    ${dialog === "reset" && html`<${ResetDialog} run=${run} step=${step} range=${range}
        onClose=${() => setDialog("")} />`}
  <//>`;
}

function count(plane, from, to) {
  const counts = plane.countIn(from, to);
  return STATES.map((state) => ({ state, items: counts[state.value] })).filter((c) => c.items > 0);
}

function Items({ run, step, from, to, page, paged }) {
  const [pages, setPages] = useState([""]);
  const [state, setState] = useState({ items: null, next: "", error: null });
  const after = pages.at(-1);
  useEffect(() => {
    const abort = new AbortController();
    api.get(`/runs/${segment(run.id)}/items${query({ from: String(from), to: String(to), step, after, limit: page })}`, { signal: abort.signal }).then(
      (answer) => setState({ items: answer.items, next: answer.next ?? "", error: null }),
      (error) => error.name !== "AbortError" && setState((s) => ({ ...s, error })),
    );
    return () => abort.abort();
  }, [run.id, step, from, to, after, page]);
  if (state.error) return html`<${ErrorBox} error=${state.error} />`;
  if (!state.items) return html`<${Skeleton} lines=${3} />`;
  if (!paged) return html`<${Few} run=${run} items=${state.items} more=${to - from + 1 - state.items.length} />`;
  return html`<ol class="picked" data-rows data-test="selection-items">${state.items.map((i) => html`<${Picked}
      key=${i.ordinal} run=${run} item=${i} />`)}</ol>
  <div class="pager"><${Button} small disabled=${pages.length < 2}
      onClick=${() => setPages(pages.slice(0, -1))}>Back<//>
    <${Button} small disabled=${!state.next} onClick=${() => setPages([...pages, state.next])}
        test="items-more">More<//></div>`;
}

function Picked({ run, item: i }) {
  const to = itemPath(run.id, i.key, i.ordinal);
  const enter = (e) => e.key === "Enter" && e.target === e.currentTarget && go(to);
  return html`<li data-row=${i.ordinal} tabindex="-1" onKeyDown=${enter}>
    <span class="picked-head"><${Link} to=${to}><${Text} max=${48}>${i.key}<//><//><span
        class="muted num">#${i.ordinal}</span></span>
    <span class="picked-facts"><${StateBadge} state=${numberOf(i.state)} /><span
        class="muted">${plural(i.attempts, "attempt")}</span></span>
    ${i.error && html`<span class="picked-error"><b><${Text} max=${40}>${i.error.code}<//></b> <${Text}
        max=${140}>${i.error.message}<//></span>`}</li>`;
}

function Few({ run, items, more }) {
  return html`<ul class="few" data-test="selection-few">${items.map((i) => html`<li key=${i.ordinal}><i
      class=${"swatch state-" + numberOf(i.state)}></i>
    <${Link} to=${itemPath(run.id, i.key, i.ordinal)}><${Text} max=${40}>${i.key}<//><//> <span
        class="muted">${stateWord(i.state)}${i.attempts > 1 && `, ${i.attempts} attempts`}${i.error && html`, <${Text}
        max=${60}>${i.error.code}<//>`}</span></li>`)}
    ${more > 0 && html`<li class="muted">and ${num(more)} more</li>`}</ul>`;
}
