import { html, signal } from "../html.js";
import { ago, clock, duration, inert, num, percent } from "../format.js";
import { times } from "../zone.js";

// now is the current time, updated each second, for relative times.
export const now = signal(Date.now());
setInterval(() => { if (!document.hidden) now.value = Date.now(); }, 1000);

// Time shows a time as "ago" (3 min ago), "for" (for 3 min) or "clock" (14:03:09 UTC); the title has the other form.
// Users may choose clock times in place of ages.
export function Time({ at, mode = "ago" }) {
  if (!at) return html`<span class="muted">–</span>`;
  const exact = mode === "clock" || (mode === "ago" && times.absolute);
  const text = exact ? clock(at)
    : mode === "for" ? "for " + duration(Math.max(1, Math.floor((now.value - new Date(at)) / 1000))) : ago(at, now.value);
  return html`<time datetime=${at} title=${exact ? ago(at) : clock(at, { date: true })}>${text}</time>`;
}

export function Num({ value, unit = "", class: extra = "" }) {
  return html`<span class=${"num " + extra}>${num(value)}${unit && html`<span class="unit"> ${unit}</span>`}</span>`;
}

export function Duration({ seconds }) {
  return html`<span class="num">${duration(seconds)}</span>`;
}

// Text shows untrusted text: keys, names, messages. It cannot affect the page.
export function Text({ children, max = 0, class: extra = "", code = false }) {
  const text = Array.isArray(children) ? children.filter((c) => c || c === 0).join("") : children;
  const shown = inert(text, max);
  const title = max > 0 && (typeof text === "object" ? inert(text) : String(text ?? "")).length > max ? inert(text, 2000) : undefined;
  return html`<bdi class=${(code ? "code " : "") + extra} title=${title}>${shown}</bdi>`;
}

// Tile is a number and its name, in dl.tiles. note: what is below.
export function Tile({ name, value, note, tone = "" }) {
  return html`<div class="tile"><dt>${name}</dt><dd class=${"num " + tone}>${value}</dd>${note && html`<dd class="tile-note">${note}</dd>`}</div>`;
}

// Progress is a bar of done and failed out of total. label is for screen readers.
export function Progress({ done = 0, failed = 0, total = 0, share, label = "Progress", state = "" }) {
  const all = Math.max(total, 1);
  const whole = share ?? Math.min(1, (done + failed) / all);
  const bad = failed > 0 ? Math.min(Math.max(failed / all, 0.006), whole || 1) : 0;
  return html`<div class=${"progress " + state} role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${Math.floor(whole * 100)} aria-valuetext=${percent(whole) + (failed ? `, ${num(failed)} failed` : "")}>
    <i class="ok" style=${{ width: Math.max(0, whole - bad) * 100 + "%" }}></i>
    <i class="bad" style=${{ width: bad * 100 + "%" }}></i></div>`;
}
