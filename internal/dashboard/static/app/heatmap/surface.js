// The map on the page: its canvases, the visible part, the marks. It draws at most once per frame, only after
// changes. It knows no API and no components: these tell it what to show, and get its events.
import { Bands, drawBands } from "./bands.js";
import { fit } from "./layout.js";
import { drawFrame, drawOverlay } from "./overlay.js";
import { LAYERS, bandOf, blends, colors, pixel, stateRank, valueRank } from "./palette.js";
import { Pyramid } from "./pyramid.js";
import { draw } from "./raster.js";
import { UNLOADED } from "./store.js";
import { Viewport } from "./viewport.js";

const SMALL = { width: 168, height: 112 }; // of the small picture, at most

// The minimum side of highlighted items, in CSS pixels.
const STANDS_OUT = 2;

export class Surface {
  /** canvases: {map, over, small}. on: {hover(ordinal, x, y, selecting), cursor(ordinal), select(range), view(), drawn()}. */
  constructor(canvases, on) {
    this.canvases = canvases;
    this.on = on;
    this.map = canvases.map.getContext("2d", { alpha: false });
    this.over = canvases.over.getContext("2d");
    this.small = canvases.small.getContext("2d", { alpha: false });
    this.view = new Viewport();
    this.layer = LAYERS.state;
    this.only = new Set();
    this.selection = null;
    this.groups = null; // {of, names}: the map is in bands
    this.bands = null;
    this.hover = -1;
    this.cursor = -1;
    this.focused = false;
    this.ratio = 1;
    this.frame = 0;
    this.frames = []; // durations of the last frames, for measurements
  }

  show(plane, layer) {
    if (this.plane) this.plane.onChange = () => {};
    const other = this.plane?.items !== plane.items;
    this.plane = plane;
    this.layer = layer;
    plane.onChange = (from, to) => {
      if (this.bands) for (const span of this.bands.update(from, to)) this.pyramid.touch(...span);
      else this.pyramid?.touch(from, to);
      this.#schedule("map");
    };
    if (other || !this.layout || this.groups) this.#arrange();
    else this.#summarize();
  }

  /** group shows items in groups, {of, names}: each ordinal's group, and the groups' names. null: ungrouped. */
  group(groups) {
    if (groups === this.groups) return;
    this.groups = groups;
    if (this.plane && this.layout) this.#arrange();
  }

  /** zoomToGroup shows a band as high as possible, from its beginning; it is as wide as the map. */
  zoomToGroup(g) {
    if (!this.bands) return;
    const { x, y, w, h } = this.bands.rectOf(g);
    this.view.zoomTo({ x, y, h, w: Math.min(w, h * this.view.width / this.view.height) });
    this.moved();
  }

  /** resized sets the size of the canvas, in CSS pixels. */
  resized(width, height, ratio) {
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (w === this.view.width && h === this.view.height && this.layout) return;
    this.ratio = ratio;
    for (const canvas of [this.canvases.map, this.canvases.over]) {
      canvas.width = w;
      canvas.height = h;
    }
    this.view.width = w;
    this.view.height = h;
    this.pixels = null;
    if (this.plane) this.#arrange();
  }

  themed(theme) {
    this.theme = theme;
    this.#color();
  }

  /** highlight emphasizes some states or bands. They also win where items share a pixel. */
  highlight(only) {
    this.only = only;
    if (this.plane && this.layout) this.#summarize();
  }

  /**
   * select marks ordinals, inclusive; null marks none. In bands a visible range is not a range of ordinals, so
   * nothing can be selected.
   */
  select(range, tell = true) {
    if (tell && range && this.bands) return;
    this.selection = range && [Math.min(range[0], range[1]), Math.max(range[0], range[1])];
    this.#schedule("over");
    if (tell) this.on.select(this.selection);
  }

  /** hoverAt reports the item under the pointer; selecting: the number of items in a drag's selection. */
  hoverAt(ordinal, x, y, selecting = 0) {
    if (ordinal < 0 && this.hover < 0) return;
    if (ordinal !== this.hover) this.#schedule("over");
    this.hover = ordinal;
    this.on.hover(ordinal, x, y, selecting);
  }

  moveCursor(ordinal, reveal = true) {
    if (!this.layout) return;
    this.cursor = Math.max(0, Math.min(this.plane.items - 1, ordinal));
    if (reveal && this.view.reveal(this.layout.x(this.cursor), this.layout.y(this.cursor))) this.moved();
    this.#schedule("over");
    this.on.cursor(this.cursor);
  }

  focus(focused) {
    this.focused = focused;
    this.#schedule("over");
  }

  /** place is the visible part, as text, and the cursor's item (-1: none). */
  get place() {
    return { view: this.opening || this.#center(), cursor: this.cursor };
  }

  /** open shows a place. While nothing is moved it stays the place, however the canvas and the layout change. */
  open({ view, cursor }) {
    this.opening = view;
    this.cursor = cursor;
    if (this.layout) this.#arrive();
  }

  // The zoom, the item in the middle and the distance to it, in cells: another canvas has its items elsewhere.
  #center() {
    const { view, layout } = this;
    if (!layout || !view.zoomed) return "";
    const { x, y } = view.toMap(view.width / 2, view.height / 2);
    const item = layout.nearest(x, y);
    return [(view.scale / view.fitScale).toFixed(2), item, (x - layout.x(item)).toFixed(2), (y - layout.y(item)).toFixed(2)].join("_");
  }

  /** moved must be called after the view changed. */
  moved() {
    this.opening = "";
    this.#schedule("map");
    this.on.view();
  }

  /** ordinalAt is the item at a position of the canvas, in its pixels; with nearest always one. */
  ordinalAt(px, py, nearest = false) {
    if (!this.layout) return -1;
    const { x, y } = this.view.toMap(px, py);
    return nearest ? this.layout.nearest(x, y) : this.layout.at(Math.floor(x), Math.floor(y));
  }

  goTo(ordinal) {
    if (!this.layout) return;
    this.view.scale = Math.min(this.view.maxScale, Math.max(this.view.scale, 14 * this.ratio));
    this.view.center(this.layout.x(ordinal) + 0.5, this.layout.y(ordinal) + 0.5);
    this.moveCursor(ordinal);
    this.moved();
  }

  zoomToRange([from, to]) {
    const rects = this.layout.rects(from, to);
    const x = Math.min(...rects.map((r) => r.x));
    const y = Math.min(...rects.map((r) => r.y));
    const w = Math.max(...rects.map((r) => r.x + r.w)) - x;
    const h = Math.max(...rects.map((r) => r.y + r.h)) - y;
    this.view.zoomTo({ x, y, w, h });
    this.moved();
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.closed = true;
    if (this.plane) this.plane.onChange = () => {};
  }

  #arrange() {
    const { width, height } = this.view;
    this.bands = this.groups && this.plane.items > 0
      ? new Bands(this.plane, this.groups.of, this.groups.names, width, height) : null;
    const { layout, cell } = this.bands ? { layout: this.bands, cell: this.bands.cell } : fit(this.plane.items, width, height);
    this.layout = layout;
    this.view.resize(width, height, layout, cell, this.ratio);
    this.#summarize();
    this.#arrive();
    this.on.view();
  }

  #arrive() {
    const [zoom, item, x, y] = (this.opening ?? "").split("_").map(Number);
    if (this.cursor >= 0 && this.plane.items > 0) this.moveCursor(this.cursor, false);
    if (!(zoom > 1 && Number.isInteger(item) && item >= 0 && item < this.plane.items && Number.isFinite(x + y))) return;
    this.view.scale = Math.min(this.view.maxScale, this.view.fitScale * zoom);
    this.view.center(this.layout.x(item) + x, this.layout.y(item) + y);
  }

  #summarize() {
    const rank = this.layer.name === "state" ? stateRank(this.only)
      : valueRank(this.only.size > 0 ? (v) => this.only.has(bandOf(this.layer, v)) : null);
    this.pyramid = this.bands ? new Pyramid(this.bands.base, this.bands.shown, rank) : new Pyramid(this.layout, this.plane, rank);
    this.#color();
  }

  #color() {
    if (!this.theme) return;
    this.colors = colors(this.layer, this.theme, this.only);
    if (this.bands) this.colors[UNLOADED] = pixel(this.theme.ground); // mostly positions without an item
    this.blend = this.layer.name === "state" && this.only.size === 0 ? blends(this.colors) : null;
    this.#schedule("map");
  }

  #schedule(what) {
    if (what === "map") this.stale = true;
    if (!this.frame && !this.closed) this.frame = requestAnimationFrame(() => this.#drawFrame());
  }

  #drawFrame() {
    this.frame = 0;
    if (!this.layout || !this.theme) return;
    const began = performance.now();
    if (this.stale) {
      this.stale = false;
      this.pyramid.flush();
      this.#drawMap();
      if (this.view.zoomed) this.#drawSmall();
    }
    drawOverlay(this.over, this.view, this.layout, this.theme, {
      selection: this.selection, hover: this.hover, cursor: this.cursor, focused: this.focused,
      colorOf: (ordinal) => unpixel(this.colors[this.plane.data[ordinal]]),
    }, this.ratio);
    if (this.bands) drawBands(this.over, this.view, this.bands, this.theme, this.ratio);
    this.frames.push(performance.now() - began);
    if (this.frames.length > 600) this.frames.shift();
    this.on.drawn();
  }

  #drawMap() {
    const { width, height } = this.view;
    if (!this.pixels) {
      this.image = new ImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const least = this.only.size > 0 ? STANDS_OUT * this.ratio : 1;
    draw(this.pixels, width, height, this.view, this.pyramid, this.colors, pixel(this.theme.ground),
      { least, blend: this.blend });
    this.map.putImageData(this.image, 0, 0);
  }

  // While zoomed in, a corner shows the whole map with a frame around the visible part.
  #drawSmall() {
    const { small } = this.canvases;
    const scale = Math.min(SMALL.width / this.layout.cols, SMALL.height / this.layout.rows);
    const w = Math.max(8, Math.round(this.layout.cols * scale));
    const h = Math.max(8, Math.round(this.layout.rows * scale));
    if (small.width !== w || small.height !== h || !this.smallImage) {
      small.width = w;
      small.height = h;
      this.smallImage = new ImageData(w, h);
    }
    const whole = { scale, ox: 0, oy: 0 };
    draw(new Uint32Array(this.smallImage.data.buffer), w, h, whole, this.pyramid, this.colors,
      pixel(this.theme.ground), { blend: this.blend });
    this.small.putImageData(this.smallImage, 0, 0);
    drawFrame(this.small, this.view, this.theme);
  }
}

function unpixel(p) {
  return [p & 255, (p >> 8) & 255, (p >> 16) & 255];
}
