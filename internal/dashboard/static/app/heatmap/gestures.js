// Mouse, pen and touch on the map. A drag selects a range. With the space bar, the middle button or in mode "move" it
// moves the map, as do two fingers, which also zoom. The wheel zooms around the pointer.

const CLICK = 4; // pixels that a pointer may move during a click

/**
 * attach adds listeners for a surface to an element. on: {inspect(ordinal), mode() "select" or "move"}. Returns
 * detach.
 */
export function attach(element, surface, on) {
  const gesture = new Gesture(element, surface, on);
  const end = new AbortController();
  const listen = (type, fn, options = {}) => element.addEventListener(type, fn, { signal: end.signal, ...options });
  listen("pointerdown", (e) => gesture.down(e));
  listen("pointermove", (e) => gesture.move(e));
  listen("pointerup", (e) => gesture.up(e));
  listen("pointercancel", (e) => gesture.cancel(e));
  listen("pointerleave", () => gesture.pointers.size === 0 && surface.hoverAt(-1, 0, 0));
  listen("dblclick", (e) => gesture.zoom(e, e.shiftKey ? 0.4 : 2.5));
  listen("wheel", (e) => gesture.wheel(e), { passive: false });
  listen("auxclick", (e) => e.preventDefault());
  const space = (e) => {
    if (e.code !== "Space" || (e.target !== element && e.target !== document.body)) return;
    gesture.space = e.type === "keydown";
    element.classList.toggle("grab", gesture.space);
    e.preventDefault();
  };
  listen("keydown", space);
  listen("keyup", space);
  listen("blur", () => {
    gesture.space = false;
    element.classList.remove("grab");
  });
  return () => end.abort();
}

class Gesture {
  constructor(element, surface, on) {
    Object.assign(this, { element, surface, on, pointers: new Map(), kind: "", space: false, anchor: -1 });
  }

  at(e) {
    const box = this.element.getBoundingClientRect();
    const ratio = this.surface.ratio;
    return { x: (e.clientX - box.left) * ratio, y: (e.clientY - box.top) * ratio };
  }

  down(e) {
    if (e.button === 2) return;
    const at = this.at(e);
    this.element.focus({ preventScroll: true });
    this.element.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, at);
    this.began = at;
    this.moved = false;
    if (this.pointers.size === 2) {
      this.kind = "pinch";
      return;
    }
    const moving = e.button === 1 || this.space || this.on.mode() === "move";
    this.kind = moving ? "pan" : "select";
    if (e.button === 1) e.preventDefault();
    this.anchor = e.shiftKey && this.surface.selection ? this.far(at) : this.surface.ordinalAt(at.x, at.y, true);
  }

  // With shift a selection is resized at the nearer end.
  far(at) {
    const [from, to] = this.surface.selection;
    const here = this.surface.ordinalAt(at.x, at.y, true);
    return Math.abs(here - from) < Math.abs(here - to) ? to : from;
  }

  move(e) {
    const at = this.at(e);
    const before = this.pointers.get(e.pointerId);
    if (!before) {
      this.hover(e);
      return;
    }
    if (Math.hypot(at.x - this.began.x, at.y - this.began.y) > CLICK * this.surface.ratio) this.moved = true;
    if (this.kind === "pinch") this.pinch(e.pointerId, before, at);
    else if (this.kind === "pan") this.pan(at.x - before.x, at.y - before.y);
    else if (this.moved) this.select(at, e);
    this.pointers.set(e.pointerId, at);
  }

  select(at, e) {
    const here = this.surface.ordinalAt(at.x, at.y, true);
    if (this.anchor < 0 || here < 0) return;
    this.surface.select([this.anchor, here], false);
    this.surface.hoverAt(here, e.clientX, e.clientY, Math.abs(here - this.anchor) + 1);
  }

  // hover reports the item under the pointer, but not under a finger, which would hide it.
  hover(e) {
    if (e.pointerType === "touch") return;
    const at = this.at(e);
    this.surface.hoverAt(this.surface.ordinalAt(at.x, at.y), e.clientX, e.clientY);
  }

  pan(dx, dy) {
    this.surface.hoverAt(-1, 0, 0);
    this.element.classList.add("grabbing");
    if (this.surface.view.pan(dx, dy)) this.surface.moved();
  }

  pinch(id, before, at) {
    this.moved = true;
    const other = [...this.pointers].find(([key]) => key !== id)?.[1];
    if (!other) return;
    const was = Math.hypot(before.x - other.x, before.y - other.y);
    const is = Math.hypot(at.x - other.x, at.y - other.y);
    const middle = { x: (at.x + other.x) / 2, y: (at.y + other.y) / 2 };
    let changed = this.surface.view.pan((at.x - before.x) / 2, (at.y - before.y) / 2);
    if (was > 8) changed = this.surface.view.zoomAt(is / was, middle.x, middle.y) || changed;
    if (changed) this.surface.moved();
  }

  up(e) {
    const at = this.pointers.get(e.pointerId) ?? this.at(e);
    this.pointers.delete(e.pointerId);
    this.element.classList.remove("grabbing");
    if (this.pointers.size > 0) {
      this.kind = this.kind === "pinch" ? "pan" : this.kind;
      this.moved = true; // the remaining finger does not click
      return;
    }
    if (this.kind === "select" && this.moved) {
      this.surface.select(this.surface.selection);
      this.surface.hoverAt(-1, 0, 0);
    } else if (!this.moved && e.button === 0) this.click(at, e);
    this.kind = "";
  }

  click(at, e) {
    const ordinal = this.surface.ordinalAt(at.x, at.y);
    if (ordinal < 0) {
      this.surface.select(null);
      return;
    }
    this.surface.moveCursor(ordinal, false);
    if (e.shiftKey && this.surface.selection) this.surface.select([this.far(at), ordinal]);
    else this.on.inspect(ordinal);
  }

  // The browser took over to scroll the page, so the gesture is dropped.
  cancel(e) {
    this.pointers.delete(e.pointerId);
    this.element.classList.remove("grabbing");
    if (this.kind === "select" && this.moved) this.surface.select(this.surface.selection);
    this.kind = "";
  }

  zoom(e, factor) {
    const at = this.at(e);
    if (!this.surface.view.zoomAt(factor, at.x, at.y)) return;
    this.surface.moved();
    this.hover(e);
  }

  wheel(e) {
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      const delta = (e.deltaX || e.deltaY) * this.surface.ratio;
      if (!this.surface.view.zoomed || !this.surface.view.pan(-delta, 0)) return;
      e.preventDefault();
      this.surface.moved();
      return;
    }
    // When fully zoomed out, the wheel scrolls the page.
    if (e.deltaY > 0 && !this.surface.view.zoomed && !e.ctrlKey) return;
    e.preventDefault();
    const lines = e.deltaMode === 1 ? 16 : 1;
    const speed = e.ctrlKey ? 0.01 : 0.0018;
    this.zoom(e, Math.exp(-Math.max(-240, Math.min(240, e.deltaY * lines)) * speed));
  }
}
