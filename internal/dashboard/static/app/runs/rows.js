// The rows of the list of runs: what the server listed, and what the stream has said since.

const settled = 15000; // ms that a run may take to begin

/** open is the number of failed items not accepted. */
export const open = (run) => run.failed - (run.accepted ?? 0);

/** stuck reports whether a run continues only if a person, or a service, does something. */
export const stuck = (run) => run.state === "running" && Boolean(run.blocker || run.approval?.length > 0 ||
  (run.rate === 0 && !run.open && Date.now() - new Date(run.started_at) > settled));

/** waits reports whether a run belongs to those that need attention, as GET /runs?attention=true has them. */
export const waits = (run) => ["loading", "running", "paused"].includes(run.state) &&
  Boolean(run.hold || run.blocker || run.approval?.length > 0 || run.at_risk || run.open?.overdue);

const newer = (a, b) => (a.id < b.id ? 1 : -1);

/** attention is the runs that need it: those of the stream, and listed ones that the stream does not have. */
export function attention(listed, live) {
  const have = new Map((live?.runs ?? []).map((r) => [r.id, r]));
  return [...(listed ?? []).filter((r) => !have.has(r.id)), ...[...have.values()].filter(waits)].sort(newer);
}

/**
 * merge overlays the stream on a page of the list. The stream has all unfinished runs, however old: on the first page
 * without a filter, those newer than its last are added, and of each schedule only the newest is shown.
 */
export function merge(listed, live, plain, full) {
  if (!live || !listed) return listed;
  const newest = new Map(live.runs.map((r) => [r.id, r]));
  const shown = listed.map((r) => ({ ...(newest.get(r.id) || r), past: r.past }));
  if (!plain) return shown;
  const have = new Set(shown.flatMap((r) => [r.id, ...(r.past ?? []).map((p) => p.id)]));
  const last = full ? shown[shown.length - 1].id : "";
  return fold([...live.runs.filter((r) => !have.has(r.id) && r.id > last), ...shown].sort(newer));
}

// fold leaves the newest run of each schedule, with those before it that are known.
function fold(runs) {
  const first = new Map();
  for (const run of runs) {
    const of = run.schedule || run.id;
    if (!first.has(of)) first.set(of, { ...run });
    else if (run.past) first.get(of).past = [...run.past.slice(-19), { ...first.get(of) }];
  }
  return [...first.values()];
}

/** shade is how high a bar of failures is in a strip: its share, but visible. */
export const shade = (run) => (open(run) > 0 ? Math.min(1, Math.max(0.25, open(run) / Math.max(1, run.items))) : 0);

/** median of numbers; undefined for none. */
export function median(values) {
  const all = [...values].sort((a, b) => a - b);
  const mid = all.length >> 1;
  return all.length % 2 ? all[mid] : all.length ? (all[mid - 1] + all[mid]) / 2 : undefined;
}
