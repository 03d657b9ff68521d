// The page of a run: the heat-map of its items, its state and its controls.
import { html, useCallback, useEffect, useRef, useState } from "../html.js";
import { api, segment } from "../api.js";
import { Card, Copy, ErrorBox, Page, Skeleton, StateBadge, Text, Time, useLoad } from "../ui.js";
import { useKeys } from "../keys.js";
import { open, stuck } from "../runs/rows.js";
import { go, namespace, setQuery } from "../router.js";
import { can, session } from "../session.js";
import { percent, shortId } from "../format.js";
import { Timeline } from "../charts/timeline.js";
import { HeatMap } from "../heatmap/heatmap.js";
import { LAYERS } from "../heatmap/palette.js";
import { RerunDialog } from "../parts/rerun.js";
import { itemPath } from "../parts/itempath.js";
import { Beside } from "../run/beside.js";
import { Canary } from "../run/canary.js";
import { Actions, Away, LiveBadge, Numbers, Reason, Warnings, ended } from "../run/head.js";
import { Gates } from "../run/gate.js";
import { Groups, useGroups } from "../run/groups.js";
import { History } from "../run/history.js";
import { useLive } from "../run/live.js";
import { Pacing } from "../run/pacing.js";
import { Report, ReportCard } from "../run/report.js";
import { Selection } from "../run/selection.js";
import { Slices } from "../run/slices.js";
import { Steps } from "../run/steps.js";
import { Why, useWhy } from "../run/why.js";

/**
 * RunPage is the page /runs/{run}. Its query: step, layer, range (the selection), time (of the timeline), view (the
 * visible part of the map), by (a field of the payloads, for bands) and at (the cursor's item). It opens the stream
 * together with the first request, because the map needs it before loading.
 */
export default function RunPage({ params, query }) {
  const [found, setFound] = useState({ run: null, error: null });
  const load = useCallback(() => {
    const abort = new AbortController();
    setFound({ run: null, error: null });
    api.get(`/runs/${segment(params.run)}`, abort).then(
      (run) => setFound({ run, error: null }),
      (error) => error.name !== "AbortError" && setFound({ run: null, error }),
    );
    return () => abort.abort();
  }, [params.run]);
  useEffect(load, [load]);
  const { live, run: streamed, state, database } = useLive(found.error ? "" : params.run, query.step ?? "");
  const known = useRef(null);
  if (found.error && !streamed) {
    return html`<${Page} title="Run" crumbs=${[["Runs", "/runs"]]}><${ErrorBox} error=${found.error}
        retry=${load} /><//>`;
  }
  // While another step's stream opens, the known document stays.
  const run = streamed ?? (known.current?.id === found.run?.id ? known.current : null) ?? found.run;
  known.current = run;
  if (!run) return html`<${Page} title="Run" crumbs=${[["Runs", "/runs"]]}><${Skeleton} height="480px" /><//>`;
  return html`<${Run} key=${run.id} run=${run} live=${live} state=${state} database=${database} query=${query} />`;
}

function Run({ run, live, state, database, query }) {
  const step = query.step ?? "";
  const layer = LAYERS[query.layer] ? query.layer : "state";
  const range = rangeOf(query.range, run.items);
  const setRange = (wanted) => setQuery({ range: wanted && wanted.join("-") });
  const [dialog, setDialog] = useState("");
  const map = useRef(null);
  const mapCard = useRef(null);
  const read = can("viewer"); // a watcher sees no keys, and what has some is not asked for
  const why = useWhy(run, read);
  const by = (read && query.by) || "";
  const groups = useGroups(run, by, read);
  const history = useLoad(read && `/runs/${segment(run.id)}/history`, [run.generation, run.state], { every: ended(run) ? 0 : 30 });

  useEffect(() => { // the namespace where the caller's role counts
    if (run.namespace !== namespace() && (namespace() || session.value.grants)) setQuery({ namespace: run.namespace });
  }, [run.id]);
  const known = step === "" || run.steps.some((s) => s.name === step);
  useEffect(() => { if (!known) setQuery({ step: "" }); }, [known]);
  useKeys([["m", "Heat-map", () => focusMap(map.current, mapCard.current)]]);
  const setStep = (name) => setQuery({ step: name });
  const inspect = useCallback((ordinal, item) => inspectItem(run.id, ordinal, item), [run.id]);
  const show = (wanted, name) => {
    if (name !== undefined && run.steps.length > 1 && name !== step && step !== "") setStep(name);
    const to = Math.min(wanted[1], run.items - 1);
    setRange([wanted[0], to]);
    map.current?.surface.zoomToRange([wanted[0], to]);
    mapCard.current?.scrollIntoView({ block: "nearest" });
  };
  const name = run.name || run.plan;
  const tab = `${run.state === "running" ? percent(run.progress) : run.state} · ${name}`;
  return html`<${Page} title=${name} tab=${tab} crumbs=${[["Runs", "/runs"]]} test="run-page"
      heading=${html`<${Text} max=${80}>${name}<//> <${StateBadge} state=${run.state}
          failed=${open(run)} of=${run.items} stuck=${stuck(run)} />`}
      subtitle=${html`<${About} run=${run} state=${state} />`}
      actions=${html`<${Actions} run=${run} onRerun=${() => setDialog("rerun")}
          onReport=${() => setDialog("report")} />`}>
    <${Away} database=${database} />
    <${Reason} run=${run} />
    <${Warnings} run=${run} />
    <${Numbers} run=${run} />
    ${!ended(run) && html`<${Beside} run=${run} />`}
    <div class="run-grid">
      <div class="run-main">
        ${why.first && html`<${Why} run=${run} why=${why} />`}
        <${Steps} run=${run} value=${step} onChange=${setStep} />
        <div ref=${mapCard}><${Card} class="map-card" label="Heat-map" test="map-card">
          <${HeatMap} run=${run} live=${live} step=${step} layer=${layer}
              onLayer=${(name) => setQuery({ layer: name === "state" ? "" : name })}
            onInspect=${inspect} onSelect=${setRange} onRange=${focusPanel} selection=${range}
                handle=${map} place=${{ view: query.view ?? "", cursor: ordinalOf(query.at, run.items) }}
            groups=${groups.map}
            onPlace=${({ view, cursor }) => setQuery({ view, at: cursor < 0 ? "" : cursor })} /><//></div>
        <${Groups} groups=${groups} by=${by} onBy=${(by) => setQuery({ by })}
            onShow=${(g) => {
              map.current?.surface.zoomToGroup(g);
              mapCard.current?.scrollIntoView({ block: "nearest" });
            }} />
        ${!why.first && html`<${Why} run=${run} why=${why} />`}
        <${Timeline} run=${run} step=${step} time=${query.time} entries=${history.data?.entries ?? []} />
        ${read && html`<${History} run=${run} history=${history} />
        <${Slices} run=${run} step=${step} onShow=${show} />`}
      </div>
      <aside class="run-side" aria-label="About the run">
        ${range && html`<${Selection} run=${run} step=${step} range=${range}
            plane=${layer === "state" ? map.current?.plane() : null}
          onClose=${() => setRange(null)} onZoom=${() => map.current.surface.zoomToRange(range)} />`}
        ${read && html`<${Gates} run=${run} />`}
        <${Canary} run=${run} />
        ${read && html`<${ReportCard} run=${run} onOpen=${() => setDialog("report")} />`}
        <${Pacing} run=${run} step=${step} onStep=${setStep} />
      </aside>
    </div>
    ${dialog === "rerun" && html`<${RerunDialog} run=${run} items=${run.failed} what="all that failed"
        select=${{ failed: true }} onClose=${() => setDialog("")} />`}
    ${dialog === "report" && html`<${Report} run=${run} onClose=${() => setDialog("")} />`}
  <//>`;
}

const ordinalOf = (text, items) => (/^\d+$/.test(text ?? "") && Number(text) < items ? Number(text) : -1);

function rangeOf(text, items) {
  const [from, to] = (text ?? "").split("-").map((t) => ordinalOf(t, items));
  return from >= 0 && to >= from ? [from, to] : null;
}

// About is the line below the name: plan, user, and whether the page is live.
function About({ run, state }) {
  return html`<${LiveBadge} state=${state} />
    ${run.name && html`<span>plan <${Text}
        max=${60}>${run.plan}<//>${run.plan_version > 0 && `@${run.plan_version}`}</span>`}
    ${run.source && html`<span class="run-source">from <${Text} max=${60}>${run.source}<//></span>`}
    <span>started <${Time} at=${run.generation > 1 ? run.created_at : run.started_at ?? run.created_at} />${
      run.created_by && html` by <${Text} max=${40}>${run.created_by}<//>`}${
      run.generation > 1 && html`, run again <${Time} at=${run.started_at} />`}</span>
    <span class="run-id"><span class="code">${shortId(run.id)}</span><${Copy} text=${run.id}
        label="Copy the run's id" /></span>`;
}

// A click on an item opens its page. The key is known if the pointer rested on it; otherwise it is looked up.
async function inspectItem(run, ordinal, item) {
  const known = item ?? (await api.get(`/runs/${segment(run)}/items?from=${ordinal}&to=${ordinal}`)).items?.[0];
  if (known) go(itemPath(run, known.key, ordinal));
}

function focusMap(map, card) {
  if (!map) return;
  card.scrollIntoView({ block: "nearest" });
  map.surface.canvases.over.focus();
  map.surface.focus(true);
  if (map.surface.cursor < 0 && map.surface.plane) map.surface.moveCursor(0, false);
}

function focusPanel() {
  document.querySelector('[data-test="inspect"]')?.focus();
}
