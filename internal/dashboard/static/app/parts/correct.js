// The dialog that replaces an item's data and reruns it.

import { html, useId, useState } from "../html.js";
import { api } from "../api.js";
import { Button, Check, Dialog, ErrorBox, Field, Text } from "../ui.js";
import { itemApi } from "./itempath.js";
import { parse } from "./jsontext.js";
import { Follow } from "./follow.js";
import { StepResets } from "./stepresets.js";

/** problem returns why a text is not a payload; empty if it is. */
export function problem(text) {
  try {
    return parse(text).kind === "object" ? "" : "The payload must be a JSON object: {…}";
  } catch (err) {
    return err.message;
  }
}

/**
 * CorrectDialog edits the payload of a key as JSON text, which is sent unchanged: numbers keep their digits. since is the
 * generation of the last correction that it has.
 */
export function CorrectDialog({ run, itemKey, payload, since, onClose }) {
  const [text, setText] = useState(payload);
  const [cascade, setCascade] = useState(false);
  const [incomplete, setIncomplete] = useState(false);
  const [reason, setReason] = useState("");
  const [tried, setTried] = useState(null);
  const [done, setDone] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState("");
  const id = useId();
  const wrong = problem(text);
  const submit = async (e) => {
    e.preventDefault();
    if (wrong) return;
    const dry = e.submitter?.value === "dry";
    setBusy(dry ? "dry" : "correct");
    setError(null);
    try {
      const rest = JSON.stringify({ if_generation: since, cascade, dry_run: dry, ...(incomplete ? { contract: "warn" } : {}), ...(reason ? { reason } : {}) });
      const body = `{"payload":${text},${rest.slice(1)}`;
      const answer = await api.post(itemApi(run, itemKey, "/correct"), body, { type: "application/json" });
      if (dry) setTried(answer);
      else setDone(answer);
    } catch (err) {
      setError(err);
    } finally {
      setBusy("");
    }
  };
  if (done) {
    return html`<${Dialog} title="Corrected" onClose=${onClose} test="correct-follow">
      ${done.begun > 0 ? html`<${StepResets} steps=${done.steps} />` : html`<p>No one had begun with the item: it will be done with the new data.</p>`}
      <${Follow} run=${run} started=${done} onClose=${onClose} />
    <//>`;
  }
  const footer = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} type="submit" form=${id} value="dry" disabled=${Boolean(wrong)} busy=${busy === "dry"} test="dry-run">Dry run<//>
    <${Button} kind="primary" icon="file" role="operator" type="submit" form=${id} value="correct" disabled=${Boolean(wrong)} busy=${busy === "correct"} test="correct-go">Correct<//>`;
  return html`<${Dialog} title=${html`Correct the data of <${Text} max=${40}>${itemKey}<//>`} onClose=${onClose} footer=${footer} test="correct-dialog">
    <form id=${id} class="rerun" onSubmit=${submit}>
      <p>The item is rerun with this data, in the run's next generation. Its previous results are discarded; the data stays known.</p>
      <${Field} label="Payload" error=${wrong}><textarea class="code" rows="12" spellcheck="false" aria-invalid=${wrong ? "true" : undefined} data-test="correct-payload" value=${text} onInput=${(e) => {
        setText(e.currentTarget.value);
        setTried(null);
      }} /><//>
      <${Check} checked=${cascade} test="cascade" onChange=${(on) => {
        setCascade(on);
        setTried(null);
      }}>Redo the dependent steps in any case, not only where a part changes<//>
      <${Check} checked=${incomplete} test="incomplete" onChange=${setIncomplete}>Correct even if a field is missing that a service requires<//>
      <${Field} label="Reason" hint="shown with the item and in the audit log"><input value=${reason} maxlength="500" autocomplete="off" data-test="reason" onInput=${(e) => setReason(e.currentTarget.value)} /><//>
      <${ErrorBox} error=${error} />
      <div aria-live="polite">
        ${tried && html`<div class="tried" data-test="tried">
          <p>Dry run: the item would be corrected, as generation ${tried.generation}. Nothing was changed.</p>
          ${tried.warnings.map((warning) => html`<p class="warn-text" key=${warning}><${Text} max=${400}>${warning}<//></p>`)}
          <${StepResets} steps=${tried.steps} />
        </div>`}
      </div>
    </form>
  <//>`;
}
