// The visible part of the map: a cell's side is `scale`, in canvas pixels, and the map's upper left corner is at (ox,
// oy). Pure arithmetic, used by gestures and keys.

/** MAX_SCALE is the largest side of a cell, in CSS pixels. */
export const MAX_SCALE = 64;

export class Viewport {
  constructor() {
    this.width = 1;
    this.height = 1;
    this.cols = 1;
    this.rows = 1;
    this.fitScale = 1;
    this.maxScale = MAX_SCALE;
    this.scale = 1;
    this.ox = 0;
    this.oy = 0;
  }

  /** resize sets the size of the canvas and the fitting map, keeping the visible part. */
  resize(width, height, layout, fitScale, ratio = 1) {
    const zoomed = this.scale > this.fitScale * 1.001;
    const at = zoomed ? this.toMap(this.width / 2, this.height / 2) : null;
    const share = at && { x: at.x / this.cols, y: at.y / this.rows };
    const zoom = this.scale / this.fitScale;
    Object.assign(this, { width, height, cols: layout.cols, rows: layout.rows, fitScale });
    this.maxScale = Math.max(fitScale, MAX_SCALE * ratio);
    this.scale = fitScale;
    if (!zoomed) return this.fit();
    this.scale = Math.min(this.maxScale, fitScale * zoom);
    this.ox = width / 2 - share.x * this.cols * this.scale;
    this.oy = height / 2 - share.y * this.rows * this.scale;
    this.#clamp();
  }

  fit() {
    this.scale = this.fitScale;
    this.ox = 0;
    this.oy = 0;
    this.#clamp();
  }

  get zoomed() {
    return this.scale > this.fitScale * 1.001;
  }

  /** zoomAt scales by factor and keeps the point (px, py) in place. */
  zoomAt(factor, px, py) {
    const scale = Math.min(this.maxScale, Math.max(this.fitScale, this.scale * factor));
    if (scale === this.scale) return false;
    const at = this.toMap(px, py);
    this.scale = scale;
    this.ox = px - at.x * scale;
    this.oy = py - at.y * scale;
    this.#clamp();
    return true;
  }

  pan(dx, dy) {
    const { ox, oy } = this;
    this.ox += dx;
    this.oy += dy;
    this.#clamp();
    return ox !== this.ox || oy !== this.oy;
  }

  /** reveal moves as little as needed to show a cell with some cells around it. */
  reveal(x, y) {
    const margin = Math.min(this.width, this.height) * 0.1;
    const left = this.ox + x * this.scale;
    const top = this.oy + y * this.scale;
    let dx = 0;
    let dy = 0;
    if (left < margin) dx = margin - left;
    else if (left + this.scale > this.width - margin) dx = this.width - margin - left - this.scale;
    if (top < margin) dy = margin - top;
    else if (top + this.scale > this.height - margin) dy = this.height - margin - top - this.scale;
    return this.pan(dx, dy);
  }

  center(x, y) {
    this.ox = this.width / 2 - x * this.scale;
    this.oy = this.height / 2 - y * this.scale;
    this.#clamp();
  }

  /** zoomTo shows a rectangle of cells as large as possible, up to MAX_SCALE. */
  zoomTo(rect) {
    const scale = Math.min(this.width / (rect.w * 1.15 + 2), this.height / (rect.h * 1.15 + 2));
    this.scale = Math.min(this.maxScale, Math.max(this.fitScale, scale));
    this.center(rect.x + rect.w / 2, rect.y + rect.h / 2);
  }

  toMap(px, py) {
    return { x: (px - this.ox) / this.scale, y: (py - this.oy) / this.scale };
  }

  // A map larger than the canvas leaves no gap at the sides; a smaller one is centered.
  #clamp() {
    this.ox = clampSide(this.ox, this.width, this.cols * this.scale);
    this.oy = clampSide(this.oy, this.height, this.rows * this.scale);
  }
}

function clampSide(offset, room, size) {
  if (size <= room) return Math.floor((room - size) / 2);
  return Math.min(0, Math.max(room - size, offset));
}
