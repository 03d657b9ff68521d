// Why a run is not done. The panel opens automatically, at the top, if something is wrong.
import { html, useEffect, useRef, useState } from "../html.js";
import { Badge, Card, ErrorBox, Skeleton, useLoad } from "../ui.js";
import { segment } from "../api.js";
import { Explanation } from "../parts/explain.js";
import { mayResume, resume } from "../runs/actions.js";
import { ended } from "./head.js";
import { movement } from "./live.js";

const STILL = 8000; // ms without movement

/** useStill reports whether a run that should make progress has not for a while. */
export function useStill(run) {
  const [still, setStill] = useState(false);
  const mark = movement(run);
  const active = run.state === "running" || run.state === "loading";
  useEffect(() => {
    setStill(false);
    if (!active) return undefined;
    const timer = setTimeout(() => setStill(true), STILL);
    return () => clearTimeout(timer);
  }, [mark, active]);
  return still;
}

/**
 * useWhy explains why a run is not done, if the user may read that. stuck: something is wrong, or there is no progress.
 * first: so since the page was opened, then the answer comes first.
 */
export function useWhy(run, read) {
  const still = useStill(run);
  const over = ended(run) || !read;
  const [stuck, setStuck] = useState(false);
  const [first, setFirst] = useState(false);
  const [open, setOpen] = useState(false);
  const chosen = useRef(false); // the user opened or closed it, which then holds
  const explain = useLoad(over ? "" : `/runs/${segment(run.id)}/explain`, [run.state, run.hold?.kind, run.warnings.join()],
    { every: open ? 5 : 15 });
  useEffect(() => {
    const now = !over && (still || run.warnings.length > 0 || Boolean(explain.data?.groups?.some((g) => g.abnormal)));
    setStuck(now);
    setFirst((was) => (was || now) && !over);
    if (!chosen.current) setOpen(now);
  }, [still, run.warnings.length > 0, explain.data, over]);
  const toggle = () => {
    chosen.current = true;
    setOpen(!open);
  };
  return { over, still, stuck, first, open, explain, toggle };
}

// acts are the remedies on the page of the run itself; what may do harm is approved at its evidence.
const acts = (run) => ({
  approve: () => document.querySelector("section.canary")?.scrollIntoView({ block: "center", behavior: "smooth" }),
  resume: mayResume(run) && (() => resume(run)),
});

export function Why({ run, why: { over, still, open, explain, toggle } }) {
  if (over) return null;
  return html`<${Card} class=${"why" + (open ? "" : " closed")} label="Why it is not done" test="why"
      title=${html`<button type="button" class="disclosure" aria-expanded=${String(open)} onClick=${toggle}
      data-test="why-toggle">
      Why it is not done</button>`} actions=${html`${still && html`<${Badge} tone="warn" test="still">not moving<//>`}
      ${!open && html`<span class="muted why-hint">what items wait for, and what to do</span>`}`}>
    ${open && html`<${ErrorBox} error=${explain.error} retry=${explain.reload} />
      ${!explain.data && !explain.error && html`<${Skeleton} lines=${3} />`}
      ${explain.data && html`<${Explanation} explanation=${explain.data} several=${run.steps.length > 1} acts=${acts(run)} />`}`}
  <//>`;
}
