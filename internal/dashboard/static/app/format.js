// Formats values as text, never HTML.
import { localZone, parts } from "./zone.js";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

// num formats 1234567 as 1,234,567; fractions below 100 keep significant digits.
export function num(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  if (!Number.isFinite(n)) return "∞";
  const size = Math.abs(n);
  if (Number.isInteger(n) || size >= 100) return whole.format(n);
  return String(Number(n.toFixed(size >= 10 ? 1 : 2)));
}

// short formats 1234567 as 1.23M, for axes and narrow places.
export function short(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const size = Math.abs(n);
  for (const [unit, at] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= at) return Number((n / at).toPrecision(3)) + unit;
  }
  return num(n);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const [unit, at] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= at) return Number((n / at).toPrecision(3)) + " " + unit;
  }
  return n + " B";
}

// percent formats a share from 0 to 1, with one decimal near the ends and two within 1 % of them. Only exactly 0 and
// 1 show as 0 % and 100 %. The command line uses the same rule.
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  if (share <= 0 || share >= 1) return (share <= 0 ? 0 : 100) + " %";
  const p = Math.min(Math.max(share * 100, 0.01), 99.99);
  const near = Math.min(p, 100 - p);
  const by = near < 1 ? 100 : near < 10 ? 10 : 1;
  return Math.round(p * by) / by + " %";
}

// failedShare is the share of failures among the items that finished, or that some step has finished.
export function failedShare({ done, failed, steps = [] }) {
  return percent(failed / Math.max(done + failed, ...steps.map((s) => s.done + s.failed + s.skipped)));
}

// duration formats seconds: 850 ms, 12.4 s, 3 min 20 s, 2 h 5 min, 3 d 4 h.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) return "0 s";
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  if (seconds < 60) return Number(seconds.toFixed(seconds < 10 ? 1 : 0)) + " s";
  const s = Math.round(seconds);
  const two = (a, unitA, b, unitB) => a + " " + unitA + (b ? " " + b + " " + unitB : "");
  if (s < 3600) return two(Math.floor(s / 60), "min", s % 60, "s");
  if (s < 86400) return two(Math.floor(s / 3600), "h", Math.floor(s % 3600 / 60), "min");
  return two(Math.floor(s / 86400), "d", Math.floor(s % 86400 / 3600), "h");
}

// zoned adds the zone of this browser to a time of day.
export const zoned = (text) => (/^\d\d:\d\d$/.test(text) ? `${text} ${localZone}` : text);

// timed names the generation that a rerun run's time covers: only one.
export const timed = (run) => (run.generation > 1 ? (run.finished_at ? "last generation" : "this generation") : "");

// setting formats a duration of the API, like 24h0m0s; other text stays unchanged.
export function setting(text) {
  const parts = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$/.exec(text ?? "");
  if (!parts || !text) return inert(text);
  const [h, m, s] = parts.slice(1).map((part) => Number(part ?? 0));
  return duration(h * 3600 + m * 60 + s);
}

// ago formats how long a time is past or ahead.
export function ago(time, now = Date.now()) {
  if (!time) return "–";
  const s = (now - new Date(time).getTime()) / 1000;
  const far = Math.abs(s);
  const full = s < 0 ? Math.round : Math.floor;
  const coarse = far < 60 ? duration(Math.floor(far))
    : far < 3600 ? full(far / 60) + " min"
    : far < 86400 ? full(far / 3600) + " h" : full(far / 86400) + " d";
  if (far < 1) return "now";
  return s >= 0 ? coarse + " ago" : "in " + coarse;
}

// clock formats a time in the chosen zone, which it names: 14:03:09 UTC, with the date unless it is today's.
export function clock(time, { date = "auto", now = new Date() } = {}) {
  if (!time) return "–";
  const day = (p) => `${p.year}-${p.month}-${p.day}`;
  const t = parts(time);
  const at = `${t.hour}:${t.minute}:${t.second} ${t.timeZoneName}`;
  return date === true || (date === "auto" && day(t) !== day(parts(now))) ? day(t) + " " + at : at;
}

// servedBy names the service with its version, or the node that made the call itself ("node 1.4 host").
export function servedBy(text) {
  const [what, version, ...host] = String(text ?? "").split(" ");
  return what === "node" && host.length > 0 ? `a node (${version}) on ${host.join(" ")}` : what;
}

// shortId is the end of an ID: IDs created within a minute begin alike.
export const shortId = (id) => (id ? String(id).slice(-8) : "–");

export const plural = (n, one, many = one + "s") => num(n) + " " + (n === 1 ? one : many);

// near returns the name that text probably meant: up to a third of it mistyped; "" for none.
export function near(text, names) {
  const away = (name) => {
    let row = Array.from({ length: name.length + 1 }, (_, i) => i);
    for (let i = 1; i <= text.length; i++) {
      const next = [i];
      for (let j = 1; j <= name.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (text[i - 1].toLowerCase() === name[j - 1].toLowerCase() ? 0 : 1));
      }
      row = next;
    }
    return row[name.length];
  };
  const [best] = names.map((name) => [away(name), name]).sort(([a], [b]) => a - b);
  return best && best[0] <= Math.max(1, Math.floor(text.length / 3)) ? best[1] : "";
}

// inert replaces invisible and reordering characters by visible text: control characters, line breaks, bidi marks,
// zero-width and tag characters, and lone surrogates. The result is safe to show as text.
export function inert(text, max = 0) {
  if (text === null || text === undefined) return "";
  let s = typeof text === "string" ? text : typeof text === "object" ? JSON.stringify(text) : String(text);
  if (max > 0 && s.length > max) s = s.slice(0, max) + "…";
  return s.replace(
    // eslint-disable-next-line no-control-regex
    /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]|[\ud800-\udfff]/gu,
    visible);
}

// Names instead of control pictures: few fonts have those.
const names = { 0: "NUL", 7: "BEL", 8: "BS", 11: "VT", 12: "FF", 13: "CR", 27: "ESC", 127: "DEL", 0x202e: "RLO", 0x200b: "ZWSP" };

function visible(c) {
  const code = c.codePointAt(0);
  if (c === "\n") return "⏎";
  if (c === "\t") return "⇥";
  if (code in names) return "⟨" + names[code] + "⟩";
  return "⟨U+" + code.toString(16).toUpperCase().padStart(4, "0") + "⟩";
}
