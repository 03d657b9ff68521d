// State shared by several pages: health and the list of runs. One stream carries both.
import { signal } from "./html.js";
import { api, query } from "./api.js";
import { namespace } from "./router.js";
import { stream } from "./stream.js";

// health is {status, counts: {critical, warning, info}}, or null until known.
export const health = signal(null);
// liveRuns is the newest runs and all that have not ended, or null until known.
export const liveRuns = signal(null);

function counted(document) {
  const counts = { critical: 0, warning: 0, info: 0 };
  for (const c of document.conditions || []) counts[c.severity]++;
  return { status: document.status, counts };
}

// watch subscribes to what a page needs; returns an unsubscribe function.
export function watch(page) {
  const onRuns = page === "runs";
  const on = {
    health: (h) => { health.value = h.counts ? h : counted(h); },
    ...(onRuns ? { runs: (r) => { liveRuns.value = { runs: r.runs || [], at: Date.now() }; } } : {}),
  };
  const poll = async () => {
    on.health(await api.get("/health"));
    on.runs?.(await api.get("/runs"));
  };
  const end = stream("/events" + query({ topic: ["health", ...(onRuns ? ["runs"] : [])], namespace: namespace() }), on, { poll });
  return () => {
    end();
    liveRuns.value = null;
  };
}
