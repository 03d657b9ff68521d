// The settings of a start: labels, encoding, and which one an error is about.
import { query } from "../api.js";
import { zoned } from "../format.js";

export const blank = {
  what: "plan", plan: "", endpoint: "", key: "", name: "", chunk: "", in_flight: "", rate: "", max_failed: "", fail_fast: "", canary: "",
  canary_auto_approve: false, on_duplicate: "", priority: "", done_by: "", max_attempts: "", timeout: "", retry_backoff: "", params: [],
};

// Text fields: [name, label, placeholder, hint].
export const pacing = [
  ["chunk", "Chunk", "as the plan says", "items in a request, or auto"],
  ["in_flight", "In flight", "auto", "requests in flight, or auto"],
  ["rate", "Rate", "no limit", "items a second"],
];

export const care = [
  ["fail_fast", "Fail fast", "200/400", "first failures of a step that pause it, or off"],
  ["canary", "Canary", "none", "items that go first, spread over all"],
  ["max_failed", "Pause at failures", "no limit", "a number, or like 1%"],
];

export const more = [
  ["max_attempts", "Attempts", "3", "how often an item is tried"],
  ["retry_backoff", "First retry after", "1s", "doubled each time"],
  ["timeout", "Time for a request", "as the plan says", "like 30s or 12m"],
  ["priority", "Priority", "0", "greater goes first"],
  ["done_by", "Done by", "none", "like 06:00, by the clock here; the pace follows"],
];

export function path(form, file, { dryRun = false, key = "" } = {}) {
  const plain = {};
  for (const [name] of [...pacing, ...care, ...more]) plain[name] = form[name].trim();
  plain.done_by = zoned(plain.done_by);
  if (Number(form.canary) > 0) plain.canary_auto_approve = form.canary_auto_approve ? "true" : "";
  return "/runs" + query({
    ...plain, name: form.name.trim(), key: form.key, on_duplicate: form.on_duplicate, source: file.name,
    endpoint: form.what === "endpoint" ? form.endpoint.trim() : "", plan_ref: form.what === "plan" ? form.plan : "",
    param: form.params.filter(([name]) => name.trim()).map(([name, value]) => name.trim() + "=" + value),
    idempotency_key: dryRun ? "" : key, dry_run: dryRun ? "true" : "",
  });
}

// typeOf is the media type by the file's name; the server also checks the content.
export function typeOf(file) {
  if (/\.parquet$/i.test(file.name)) return "application/vnd.apache.parquet";
  if (/\.(ndjson|jsonl)(\.gz|\.zst)?$/i.test(file.name)) return "application/x-ndjson";
  return "text/csv";
}

// placeOf is the field that a problem is about: its text begins with the setting's name. "items" is the file.
export function placeOf(error) {
  const location = error.errors?.[0]?.location || "";
  if (location.startsWith("items")) return "items";
  const named = /^(?:query\.)?([a-z_]+)[:.]/.exec(location + ":")?.[1];
  const begins = /^([a-z_]+)(?:\s"[^"]*")?:/.exec(error.detail || "")?.[1];
  for (const one of [named, begins]) {
    if (one === "plan_ref") return "plan";
    if (one === "param" || one === "params") return "params";
    if (one && one in blank) return one;
  }
  return "";
}

export const nameFrom = (file) => file.name.replace(/\.(csv|tsv|ndjson|jsonl|json|parquet)?(\.gz|\.zst)?$/i, "")
  .replaceAll(/[_\s]+/g, " ").trim().slice(0, 80);
