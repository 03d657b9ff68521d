// The keyboard on the map: arrows move a cursor and the map with it; the page reads out the item.

export const HELP = [
  ["← ↑ → ↓", "move the cursor; with Alt, by one item"],
  ["Shift + arrows", "select a range"],
  ["Ctrl + arrows", "move the map"],
  ["+ −", "zoom around the cursor"],
  ["0", "show everything"],
  ["Enter", "inspect the item, or the selected range"],
  ["n, p", "next, previous item of what is highlighted, or failed"],
  ["Home, End", "first, last item"],
  ["Esc", "drop the selection"],
];

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const STEP = 8; // minimum pixels per move: when zoomed out a cell is too small

/** attachKeys adds listeners to an element. on: {inspect(ordinal), range(range), find(backwards)}. Returns detach. */
export function attachKeys(element, surface, on) {
  const end = new AbortController();
  let anchor = -1;
  let leaving = 0; // until when a key after g leads to another page
  element.addEventListener("keydown", (e) => {
    if (e.metaKey || !surface.layout) return;
    if (performance.now() < leaving) return;
    leaving = e.key === "g" ? performance.now() + 1500 : 0;
    surface.hoverAt(-1, 0, 0);
    if (ARROWS[e.key]) anchor = arrow(e, surface, anchor);
    else if (e.ctrlKey || e.altKey || !other(e, surface, on)) return;
    e.preventDefault();
    e.stopPropagation();
  }, { signal: end.signal });
  element.addEventListener("focus", () => surface.focus(element.matches(":focus-visible")), { signal: end.signal });
  element.addEventListener("blur", () => surface.focus(false), { signal: end.signal });
  return () => end.abort();
}

function arrow(e, surface, anchor) {
  const [dx, dy] = ARROWS[e.key];
  surface.focus(true);
  const { view } = surface;
  if (e.ctrlKey) {
    if (view.pan(-dx * view.width * 0.2, -dy * view.height * 0.2)) surface.moved();
    return anchor;
  }
  const from = surface.cursor < 0 ? firstSeen(surface) : surface.cursor;
  const to = surface.cursor < 0 ? from : step(surface, from, dx, dy, e.altKey);
  let begin = anchor;
  if (!e.shiftKey) begin = -1;
  else if (begin < 0 || !surface.selection) begin = from;
  surface.moveCursor(to);
  if (e.shiftKey) surface.select([begin, to]);
  return begin;
}

function step(surface, from, dx, dy, single) {
  const { layout, view, ratio } = surface;
  const cells = single ? 1 : Math.max(1, Math.ceil((STEP * ratio) / view.scale));
  const x = layout.x(from) + dx * cells;
  const y = layout.y(from) + dy * cells;
  return layout.nearest(x, y);
}

function firstSeen(surface) {
  return surface.view.zoomed ? surface.ordinalAt(surface.view.width / 2, surface.view.height / 2, true) : 0;
}

function other(e, surface, on) {
  const zoom = (factor) => {
    const { view, layout, cursor } = surface;
    const at = cursor < 0 ? [view.width / 2, view.height / 2]
      : [view.ox + layout.x(cursor) * view.scale, view.oy + layout.y(cursor) * view.scale];
    if (view.zoomAt(factor, ...at)) surface.moved();
    if (cursor >= 0) surface.moveCursor(cursor);
  };
  switch (e.key) {
    case "+": case "=": zoom(1.6); break;
    case "-": case "_": zoom(1 / 1.6); break;
    case "0": surface.view.fit(); surface.moved(); break;
    case "Home": surface.moveCursor(0); break;
    case "End": surface.moveCursor(surface.plane.items - 1); break;
    case "n": on.find(false); break;
    case "p": on.find(true); break;
    case "Enter": enter(surface, on); break;
    case "Escape":
      if (!surface.selection) return false;
      surface.select(null);
      break;
    default: return false;
  }
  surface.focus(true);
  return true;
}

function enter(surface, on) {
  if (surface.selection) on.range(surface.selection);
  else if (surface.cursor >= 0) on.inspect(surface.cursor);
}
