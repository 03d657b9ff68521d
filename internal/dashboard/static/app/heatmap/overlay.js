// Draws over the map: the selected range, the hovered item, the keyboard cursor, and ordinals in cells that are large
// enough.
import { css, mix } from "./palette.js";

const LABELS_FROM = 40; // minimum side of a cell that shows its ordinal, in CSS pixels

/** drawOverlay draws on a cleared canvas. marks: {selection: [from, to] or null, hover, cursor (-1: none), focused}. */
export function drawOverlay(ctx, view, layout, theme, marks, ratio) {
  const { width, height } = ctx.canvas;
  ctx.clearRect(0, 0, width, height);
  if (marks.selection) drawRange(ctx, view, layout, theme, marks.selection, ratio);
  if (view.scale >= LABELS_FROM * ratio) drawLabels(ctx, view, layout, ratio, marks.colorOf);
  if (marks.hover >= 0) outline(ctx, view, layout, marks.hover, css(theme.text), ratio, 1.5);
  if (marks.cursor >= 0 && marks.focused) drawCursor(ctx, view, layout, theme, marks.cursor, ratio);
}

// A range is a shape of up to seven rectangles. Its border remains when the shape is cut out of a larger one.
function drawRange(ctx, view, layout, theme, [from, to], ratio) {
  const border = 1.5 * ratio;
  const rects = layout.rects(from, to).map((r) => onScreen(view, r));
  ctx.fillStyle = css(theme.text);
  for (const r of rects) ctx.fillRect(r.x - border, r.y - border, r.w + 2 * border, r.h + 2 * border);
  for (const r of rects) ctx.clearRect(r.x, r.y, r.w, r.h);
  const [red, green, blue] = theme.accent;
  ctx.fillStyle = `rgb(${red} ${green} ${blue} / 0.28)`;
  for (const r of rects) ctx.fillRect(r.x, r.y, r.w, r.h);
}

// The outline of a cell has a minimum size, to be found from afar.
function outline(ctx, view, layout, ordinal, color, ratio, line) {
  const least = 5 * ratio;
  const r = onScreen(view, { x: layout.x(ordinal), y: layout.y(ordinal), w: 1, h: 1 });
  const side = Math.max(r.w, least);
  ctx.strokeStyle = color;
  ctx.lineWidth = line * ratio;
  const shift = (side - r.w) / 2;
  ctx.strokeRect(r.x - shift, r.y - shift, side, side);
}

function drawCursor(ctx, view, layout, theme, ordinal, ratio) {
  outline(ctx, view, layout, ordinal, css(theme.panel), ratio, 5);
  outline(ctx, view, layout, ordinal, css(theme.accent), ratio, 2.5);
  if (view.scale > 12 * ratio) return;
  // From afar a small square is lost among thousands, so a cross marks it.
  const x = view.ox + (layout.x(ordinal) + 0.5) * view.scale;
  const y = view.oy + (layout.y(ordinal) + 0.5) * view.scale;
  ctx.beginPath();
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    ctx.moveTo(x + dx * 5 * ratio, y + dy * 5 * ratio);
    ctx.lineTo(x + dx * 12 * ratio, y + dy * 12 * ratio);
  }
  ctx.strokeStyle = css(theme.panel);
  ctx.lineWidth = 4 * ratio;
  ctx.stroke();
  ctx.strokeStyle = css(theme.accent);
  ctx.lineWidth = 2 * ratio;
  ctx.stroke();
}

function drawLabels(ctx, view, layout, ratio, colorOf) {
  ctx.font = `${Math.round(10 * ratio)}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  const x0 = Math.max(0, Math.floor(-view.ox / view.scale));
  const y0 = Math.max(0, Math.floor(-view.oy / view.scale));
  const x1 = Math.min(layout.cols - 1, Math.ceil((view.width - view.ox) / view.scale));
  const y1 = Math.min(layout.rows - 1, Math.ceil((view.height - view.oy) / view.scale));
  for (let y = y0; y <= y1; y++) {
    for (let x = x0; x <= x1; x++) {
      const ordinal = layout.at(x, y);
      if (ordinal < 0) continue;
      ctx.fillStyle = contrast(colorOf(ordinal));
      ctx.fillText(String(ordinal), view.ox + x * view.scale + 4 * ratio, view.oy + y * view.scale + 4 * ratio,
        view.scale - 8 * ratio);
    }
  }
}

function contrast([r, g, b]) {
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "rgb(0 0 0 / 0.75)" : "rgb(255 255 255 / 0.85)";
}

export function drawFrame(ctx, view, theme) {
  const { width, height } = ctx.canvas;
  const sx = width / (view.cols * view.scale);
  const sy = height / (view.rows * view.scale);
  const x = Math.max(0, -view.ox * sx);
  const y = Math.max(0, -view.oy * sy);
  const w = Math.max(4, Math.min(width - x, view.width * sx));
  const h = Math.max(4, Math.min(height - y, view.height * sy));
  ctx.strokeStyle = css(mix(theme.panel, theme.text, 0.1));
  ctx.lineWidth = 4;
  ctx.strokeRect(x, y, w, h);
  ctx.strokeStyle = css(theme.accent);
  ctx.lineWidth = 2;
  ctx.strokeRect(x, y, w, h);
}

function onScreen(view, r) {
  return { x: view.ox + r.x * view.scale, y: view.oy + r.y * view.scale, w: r.w * view.scale, h: r.h * view.scale };
}
