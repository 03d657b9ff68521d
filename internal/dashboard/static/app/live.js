// What several pages watch: the health of all, and the list of runs. One stream carries both, since a browser has few
// connections.
import { signal } from "./html.js";
import { stream } from "./stream.js";
import { api } from "./api.js";

// health is {status, counts: {critical, warning, info}}, or null before it is known.
export const health = signal(null);
// liveRuns is the newest runs and all that have not ended, or null while nothing is known.
export const liveRuns = signal(null);

const healthEvery = 20000; // ms, where no stream brings it

function counted(document) {
  const counts = { critical: 0, warning: 0, info: 0 };
  for (const c of document.conditions || []) counts[c.severity]++;
  return { status: document.status, counts };
}

async function askHealth() {
  if (document.hidden) return;
  try {
    health.value = counted(await api.get("/health"));
  } catch { /* the page's own calls say what is wrong */ }
}

// watch holds what a page needs of them; returns what ends it. The page of a run has a stream of its own, and asks for
// the health now and then.
export function watch(page) {
  if (page === "run") {
    askHealth();
    const timer = setInterval(askHealth, healthEvery);
    return () => clearInterval(timer);
  }
  const onRuns = page === "runs";
  const end = stream("/events?topic=health" + (onRuns ? "&topic=runs" : ""), {
    health: (h) => { health.value = h.counts ? h : counted(h); },
    ...(onRuns ? { runs: (r) => { liveRuns.value = { runs: r.runs || [], at: Date.now() }; } } : {}),
  });
  return () => {
    end();
    liveRuns.value = null;
  };
}
