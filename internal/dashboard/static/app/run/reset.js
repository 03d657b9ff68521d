// The dialog that discards the results of a step for a range of items, to recompute them.
import { html, useEffect, useState } from "../html.js";
import { api, segment } from "../api.js";
import { Button, Check, Dialog, ErrorBox, Field, Select, Skeleton, Text, toast } from "../ui.js";
import { inert, num, plural } from "../format.js";
import { StepResets } from "../parts/stepresets.js";

/** ResetDialog makes a dry run automatically as soon as a step is chosen. */
export function ResetDialog({ run, step, range, onClose }) {
  const [chosen, setChosen] = useState(step || run.steps[0].name);
  const [cascade, setCascade] = useState(false);
  const [reason, setReason] = useState("");
  const [tried, setTried] = useState(null);
  const [error, setError] = useState(null);
  const body = { step: chosen, ranges: [range], cascade };
  const path = `/runs/${segment(run.id)}/reset`;
  useEffect(() => {
    const abort = new AbortController();
    setTried(null);
    setError(null);
    api.post(path, { ...body, dry_run: true }, { signal: abort.signal }).then(setTried, (err) => err.name !== "AbortError" && setError(err));
    return () => abort.abort();
  }, [chosen, cascade, range[0], range[1]]);
  const go = async () => {
    try {
      const done = await api.post(path, { ...body, reason: reason || undefined });
      toast(`${plural(done.items, "part")} of ${done.step} discarded`, { tone: "ok" });
      onClose();
    } catch (err) {
      setError(err);
    }
  };
  const several = run.steps.length > 1;
  const footer = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="danger" icon="reload" role="operator" disabled=${!tried || tried.items === 0} onClick=${go}
        test="reset-go">${tried ? `Reset ${plural(tried.items, "part")}` : "Reset"}<//>`;
  return html`<${Dialog} title="Reset a part" onClose=${onClose} footer=${footer} test="reset-dialog">
    <p>The step's results are discarded for ${plural(range[1] - range[0] + 1, "item")} (#${num(range[0])} to #${num(range[1])}), and recomputed. Dependent steps are rerun where a result changes.</p>
    ${several && html`<${Field} label="Step"><${Select} value=${chosen} options=${run.steps.map((s) => s.name)}
        onChange=${setChosen} test="reset-step" /><//>
      <${Check} checked=${cascade} onChange=${setCascade}
          test="reset-cascade">Redo the steps after it in any case, not only where a part changes<//>`}
    <${Field} label="Reason" hint="for the audit log"><input value=${reason} maxlength="500"
        onInput=${(e) => setReason(e.currentTarget.value)} autocomplete="off" data-test="reset-reason" /><//>
    <${ErrorBox} error=${error} />
    <div class=${error ? "" : "tried"} aria-live="polite" data-test="reset-tried">
      ${!tried && !error && html`<${Skeleton} lines=${2} />`}
      ${tried && html`<p>Tried without changing anything: ${tried.items > 0 ? html`<strong>${plural(tried.items, "part")}</strong> of <${Text}
          max=${40}>${tried.step}<//> would be recomputed, as generation ${tried.generation}.` : "there is nothing to discard."}</p>
        <${StepResets} steps=${tried.steps} />
        ${[...(tried.notes ?? []), ...(tried.warnings ?? [])].map((n) => html`<p class="muted"
            key=${n}>${inert(n, 300)}</p>`)}`}
    </div>
  <//>`;
}
