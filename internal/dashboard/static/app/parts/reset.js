// The dialog that discards an item's result of a step, to recompute it.

import { html, useId, useState } from "../html.js";
import { api, segment } from "../api.js";
import { Button, Check, Dialog, ErrorBox, Field, Text } from "../ui.js";
import { inert, plural } from "../format.js";
import { Follow } from "./follow.js";
import { StepResets } from "./stepresets.js";

/**
 * ResetDialog resets a selection of items at a step, named by step: those of a key, which may have twins, or those of
 * a group of errors of another step.
 */
export function ResetDialog({ run, step, select, what, twins = 1, onClose }) {
  const [cascade, setCascade] = useState(false);
  const [reason, setReason] = useState("");
  const [tried, setTried] = useState(null);
  const [done, setDone] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState("");
  const id = useId();
  const submit = async (e) => {
    e.preventDefault();
    const dry = e.submitter?.value === "dry";
    setBusy(dry ? "dry" : "reset");
    setError(null);
    try {
      const body = { step, ...select, cascade, dry_run: dry, ...(reason ? { reason } : {}) };
      const answer = await api.post(`/runs/${segment(run)}/reset`, body);
      if (dry) setTried(answer);
      else setDone(answer);
    } catch (err) {
      setError(err);
    } finally {
      setBusy("");
    }
  };
  if (done) {
    return html`<${Dialog} title="Reset" onClose=${onClose} test="reset-follow">
      <${StepResets} steps=${done.steps} />
      <${Follow} run=${run} started=${done} onClose=${onClose} />
    <//>`;
  }
  const footer = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} type="submit" form=${id} value="dry" busy=${busy === "dry"} test="dry-run">Dry run<//>
    <${Button} kind="primary" icon="reload" role="operator" type="submit" form=${id} value="reset" busy=${busy === "reset"} test="reset-go">Reset<//>`;
  return html`<${Dialog} title=${html`Reset step <${Text} max=${40}>${step}<//>`} onClose=${onClose} footer=${footer} test="reset-dialog">
    <form id=${id} class="rerun" onSubmit=${submit}>
      <p>This step's result for <strong>${what}</strong> is discarded and recomputed in the run's next generation. The old one stays in its history.
      Dependent steps wait, and are rerun where the result changes.${twins > 1 && html` The key occurs ${twins} times: all of these items are reset.`}</p>
      <${Check} checked=${cascade} test="cascade" onChange=${(on) => {
        setCascade(on);
        setTried(null);
      }}>Redo the dependent steps in any case, not only where a part changes<//>
      <${Field} label="Reason" hint="for the audit log"><input value=${reason} maxlength="500" autocomplete="off" data-test="reason" onInput=${(e) => setReason(e.currentTarget.value)} /><//>
      <${ErrorBox} error=${error} />
      <div aria-live="polite">
        ${tried && html`<div class="tried" data-test="tried">
          <p>Dry run: ${plural(tried.items, "item")} would be reset at step <${Text} max=${40}>${tried.step}<//>, as generation ${tried.generation}. Nothing was changed.</p>
          <${StepResets} steps=${tried.steps} />
          ${(tried.notes ?? []).map((n) => html`<p class="muted" key=${n}>${inert(n, 400)}</p>`)}
          ${(tried.warnings ?? []).map((w) => html`<p class="warn-text" key=${w}>${inert(w, 400)}</p>`)}
        </div>`}
      </div>
    </form>
  <//>`;
}
