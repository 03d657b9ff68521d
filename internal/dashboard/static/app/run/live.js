// The stream of a run: its document, and changes of its planes.
import { useEffect, useMemo, useState } from "../html.js";
import { api, query, segment } from "../api.js";
import { stream } from "../stream.js";

const PATIENCE = 1500; // ms until the map is fetched without an open stream

/** movement changes when a run makes progress. */
export const movement = (run) =>
  [run.state, run.generation, run.done, run.failed, ...run.steps.flatMap((s) => [s.done, s.failed, s.skipped])].join();

/** Live is a stream shared by several parts of the page. */
export class Live {
  constructor() {
    this.listeners = new Map();
    this.open = new Promise((resolve) => (this.hello = resolve));
  }

  /** on subscribes to "run", "delta", "resync" or "end". Returns an unsubscribe function. */
  on(name, fn) {
    if (!this.listeners.has(name)) this.listeners.set(name, new Set());
    this.listeners.get(name).add(fn);
    return () => this.listeners.get(name).delete(fn);
  }

  tell(name, data) {
    for (const fn of this.listeners.get(name) ?? []) fn(data);
  }

  /** opened resolves when changes are received: data fetched then can be kept current. */
  opened() {
    return Promise.race([this.open, new Promise((resolve) => setTimeout(resolve, PATIENCE))]);
  }
}

/**
 * useLive opens the stream of a run (an ID or another reference) and a step (empty: all steps). Returns {live, run,
 * state, database}.
 */
export function useLive(id, step) {
  const live = useMemo(() => new Live(), [id, step]);
  const [run, setRun] = useState(null);
  const [state, setState] = useState("connecting");
  const [database, setDatabase] = useState(null);
  useEffect(() => {
    if (!id) return undefined;
    let met = false;
    setDatabase(null);
    setRun((known) => (known?.of === id ? known : null));
    const on = {
      hello: ({ resumed }) => {
        live.hello();
        if (met && !resumed) live.tell("resync", {}); // another server, without knowledge of earlier events
        met = true;
      },
      database: (data) => setDatabase(data.ok ? null : data),
      run: (doc) => {
        setRun({ of: id, doc });
        live.tell("run", doc);
      },
      delta: (data) => live.tell("delta", data),
      resync: () => live.tell("resync", {}),
      end: () => live.tell("end", {}),
    };
    let last = "";
    const poll = async () => {
      const doc = await api.get(`/runs/${segment(id)}`);
      on.run(doc);
      if (last !== (last = movement(doc))) on.resync();
    };
    return stream(`/runs/${segment(id)}/events${query({ step, planes: "true" })}`, on, { onState: setState, poll });
  }, [id, step, live]);
  return { live, run: run?.of === id ? run.doc : null, state, database };
}
