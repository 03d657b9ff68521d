// The heat-map of a run: every item is a pixel. This component feeds the surface, describes the item under pointer or
// cursor, and has the legend, the tools and the counts as a table.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { ErrorBox, Empty } from "../ui.js";
import { num, percent } from "../format.js";
import { can } from "../session.js";
import { Feed } from "./feed.js";
import { attach } from "./gestures.js";
import { attachKeys } from "./keys.js";
import { CountTable, Legend } from "./legend.js";
import { fit } from "./layout.js";
import { Lookup } from "./lookup.js";
import { LAYERS } from "./palette.js";
import { State } from "./store.js";
import { Surface } from "./surface.js";
import { onTheme, readTheme } from "./theme.js";
import { Spoken, Tip } from "./tip.js";
import { Tools } from "./tools.js";

const COUNTS = 300;  // ms between updates of the legend's counts
const BELOW = 130;   // pixels of the legend
const NARROW = 860;  // pixels; a narrower page has one column
const SETTLED = 500; // ms without a move until the place is saved

/**
 * HeatMap shows a plane of a run. live: the run's stream (see run/live.js). onInspect(ordinal, item) is for a click,
 * onSelect(range) for a drag; place is where to begin, and onPlace({view, cursor}) reports where the view settled.
 * groups: {of, names} shows items in bands; handle.current gets the surface (see Surface).
 */
export function HeatMap({ run, live, step, layer, onLayer, onInspect, onSelect, onRange, handle, selection, place, onPlace, groups = null }) {
  const frame = useRef(null);
  const refs = { map: useRef(null), over: useRef(null), small: useRef(null) };
  const surface = useRef(null);
  const [mode, setMode] = useState("select");
  const modeNow = useRef(mode);
  modeNow.current = mode;
  const [only, setOnly] = useState(() => new Set());
  const [seen, setSeen] = useState({ counts: null, items: 0, loaded: 0, zoom: 1, zoomed: false });
  const [error, setError] = useState(null);
  const [tip, setTip] = useState(null);
  const [spoken, setSpoken] = useState("");
  const spec = LAYERS[layer] ?? LAYERS.state;
  const calls = useRef({});
  calls.current = { onInspect, onSelect, onRange, onPlace };

  const lookup = useRef(null);
  useEffect(() => {
    lookup.current = new Lookup(run.id, step, can("viewer") ? undefined : async () => ({})); // a watcher sees no keys
    return () => lookup.current.close();
  }, [run.id, step]);

  // The surface lives as long as the component.
  useLayoutEffect(() => {
    const canvases = { map: refs.map.current, over: refs.over.current, small: refs.small.current };
    const count = counter(() => surface.current, setSeen);
    const settled = later(() => calls.current.onPlace?.(made.place), SETTLED);
    const made = new Surface(canvases, {
      hover: (...at) => hover(lookup.current, setTip, ...at),
      cursor: (ordinal) => {
        settled.soon();
        lookup.current.want(ordinal, (item, err) => setSpoken({ ordinal, item, err }));
      },
      select: (range) => calls.current.onSelect(range),
      view: () => {
        count.soon();
        settled.soon();
      },
      drawn: count.soon,
    });
    surface.current = made;
    if (place) made.open(place);
    canvases.over.surface = made; // for tests and measurements in a browser
    if (handle) handle.current = { surface: made, plane: () => made.plane };
    const inspect = (ordinal) => calls.current.onInspect(ordinal, lookup.current.known.get(ordinal)?.item);
    const find = (backwards) => findNext(made, backwards, setSpoken);
    const ends = [
      attach(canvases.over, made, { inspect, mode: () => (made.bands ? "move" : modeNow.current) }),
      attachKeys(canvases.over, made, { inspect, find, range: (r) => calls.current.onRange?.(r) }),
      onTheme(() => made.themed(readTheme(frame.current))),
      observe(frame.current, made),
      count.end,
      settled.end,
    ];
    made.themed(readTheme(frame.current));
    return () => {
      ends.forEach((end) => end());
      made.close();
      if (handle) handle.current = null;
    };
  }, []);

  // A plane is fetched once the stream is open, see Feed.
  useEffect(() => {
    setError(null);
    const feed = new Feed(run.id, { step, layer: spec.name }, {
      plane: (plane) => {
        shape(frame.current, plane.items);
        surface.current.show(plane, spec);
      },
      loaded: () => setError(null),
      error: setError,
    });
    const offs = [
      live.on("delta", (d) => feed.delta(d)),
      live.on("resync", () => {
        lookup.current.forget();
        feed.load();
      }),
      live.on("run", (doc) => feed.grown(doc.items)),
    ];
    let over = false;
    live.opened().then(() => over || feed.load());
    surface.current.feed = feed;
    return () => {
      over = true;
      offs.forEach((off) => off());
      feed.close();
    };
  }, [run.id, step, spec.name, live]);

  useEffect(() => surface.current.highlight(only), [only]);
  useEffect(() => surface.current.group(groups), [groups]);
  useEffect(() => setOnly(new Set()), [spec.name]);
  useEffect(() => surface.current.select(selection, false), [selection?.[0], selection?.[1]]);

  const going = seen.items > 0 && seen.loaded < seen.items;
  return html`<div class="heatmap" data-test="heatmap" data-layer=${spec.name} data-step=${step}>
    <${Tools} run=${run} layer=${spec} onLayer=${onLayer} mode=${mode} onMode=${setMode} seen=${seen} grouped=${groups !== null}
      surface=${surface} />
    <${ErrorBox} error=${error} title="The map could not be loaded" retry=${() => surface.current.feed.load()} />
    <div class=${"map-frame mode-" + mode + (seen.zoomed ? " zoomed" : "")} ref=${frame}>
      <canvas class="map-cells" ref=${refs.map} aria-hidden="true"></canvas>
      <canvas class="map-over" ref=${refs.over} tabindex="0" role="application" data-test="map"
        aria-label=${`Heat-map of ${num(run.items)} items by ${spec.text.toLowerCase()}`}
            aria-describedby="map-help"></canvas>
      <canvas class="map-small" ref=${refs.small} hidden=${!seen.zoomed} aria-hidden="true"
        onPointerDown=${(e) => wander(e, surface.current)}
            onPointerMove=${(e) => e.buttons && wander(e, surface.current)}></canvas>
      ${going && html`<p class="map-loading" role="status">Loading ${percent(seen.loaded / seen.items)}</p>`}
      ${run.items === 0 && html`<div class="map-empty"><${Empty} title="No items yet">
        <p>They appear here as they come in.</p><//></div>`}
    </div>
    <p class="sr" id="map-help">Arrows move a cursor over the items, and Shift with them selects a range. Plus and minus
      zoom, 0 shows everything, Enter inspects, n goes to the next failed item. The counts are in the table below.</p>
    <${Spoken} at=${spoken} layer=${spec} plane=${surface.current?.plane} />
    <${Legend} layer=${spec} seen=${seen} only=${only} onOnly=${setOnly} surface=${surface.current} />
    <${CountTable} layer=${spec} seen=${seen} onShow=${(values) => show(surface.current, values)} />
    ${tip && html`<${Tip} ...${tip} plane=${surface.current?.plane} layer=${spec} />`}
  </div>`;
}

function counter(surfaceOf, setSeen) {
  let timer = 0;
  const read = () => {
    timer = 0;
    const { plane, view } = surfaceOf();
    if (!plane) return;
    setSeen({
      counts: Float64Array.from(plane.counts), items: plane.items, loaded: plane.loaded,
      zoom: view.scale / view.fitScale, zoomed: view.zoomed, side: view.scale,
    });
  };
  let last = 0;
  return {
    soon() {
      if (timer) return;
      const wait = Math.max(0, COUNTS - (performance.now() - last));
      timer = setTimeout(() => {
        last = performance.now();
        read();
      }, wait);
    },
    end: () => clearTimeout(timer),
  };
}

// later calls fn when soon() has not been called for a while.
function later(fn, wait) {
  let timer = 0;
  const end = () => clearTimeout(timer);
  return {
    end,
    soon() {
      end();
      timer = setTimeout(fn, wait);
    },
  };
}

function hover(lookup, setTip, ordinal, x, y, selecting) {
  if (ordinal < 0) {
    lookup.want(-1);
    setTip(null);
    return;
  }
  setTip((tip) => ({ ordinal, x, y, selecting, item: tip?.ordinal === ordinal ? tip.item : null }));
  if (selecting) return;
  lookup.want(ordinal, (item, error) => setTip((tip) => (tip?.ordinal === ordinal ? { ...tip, item, error } : tip)));
}

// findNext moves the cursor to the next highlighted item, or without a highlight to the next failed one.
function findNext(surface, backwards, setSpoken) {
  const values = wanted(surface);
  const from = surface.cursor < 0 ? (backwards ? 0 : -1) : surface.cursor;
  const found = surface.plane.find(values, from, backwards);
  if (found < 0) setSpoken({ text: "There is no such item." });
  else surface.moveCursor(found);
}

function wanted({ layer, only }) {
  if (layer.name === "state") return only.size > 0 ? [...only] : [State.FAILED];
  const bands = only.size > 0 ? [...only] : [layer.bands.length - 1];
  return bands.flatMap((b) => valuesOf(layer.bands[b]));
}

const valuesOf = ({ from, to }) => Array.from({ length: to - from + 1 }, (_, i) => from + i);

function show(surface, values) {
  const found = surface.plane?.find(values, -1) ?? -1;
  if (found < 0) return;
  surface.goTo(found);
  surface.canvases.over.focus();
  surface.focus(true);
}

function wander(e, surface) {
  const box = e.currentTarget.getBoundingClientRect();
  const { view } = surface;
  view.center(((e.clientX - box.left) / box.width) * view.cols, ((e.clientY - box.top) / box.height) * view.rows);
  surface.moved();
}

// shape makes the frame as high as the window permits and its items need.
function shape(frame, items) {
  const least = parseFloat(getComputedStyle(frame).getPropertyValue("--map-height")) || 480;
  const room = innerHeight - (frame.getBoundingClientRect().top + scrollY) - BELOW;
  const most = Math.max(least, innerWidth > NARROW ? room : 0);
  const { layout, cell } = fit(items, Math.max(1, frame.clientWidth), most);
  const height = Math.min(most, Math.max(72, Math.ceil(layout.rows * cell)));
  frame.style.height = `${height}px`;
}

function observe(frame, surface) {
  const measure = () => {
    if (surface.plane) shape(frame, surface.plane.items);
    surface.resized(frame.clientWidth, frame.clientHeight, Math.min(2, window.devicePixelRatio || 1));
  };
  const observer = new ResizeObserver(measure);
  observer.observe(frame);
  addEventListener("resize", measure);
  measure();
  return () => {
    observer.disconnect();
    removeEventListener("resize", measure);
  };
}
