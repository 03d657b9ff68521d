// The dialog to accept a run's failures, with a reason, or to withdraw that.

import { html, useId, useState } from "../html.js";
import { api, segment } from "../api.js";
import { Button, Dialog, ErrorBox, Field, Text, toast } from "../ui.js";
import { num, plural } from "../format.js";

/**
 * AcceptDialog accepts a selection of failures or, with withdraw, undoes that. select is the API's selection
 * ({groups}, {keys}, {failed} …), items their number, what their name in words.
 */
export function AcceptDialog({ run, select, items, what, withdraw = false, onClose }) {
  const [reason, setReason] = useState("");
  const [tried, setTried] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState("");
  const id = useId();
  const submit = async (e) => {
    e.preventDefault();
    const dry = e.submitter?.value === "dry";
    setBusy(dry ? "dry" : "accept");
    setError(null);
    try {
      const body = { ...select, dry_run: dry, ...(withdraw ? { withdraw } : {}), ...(reason ? { reason } : {}) };
      const answer = await api.post(`/runs/${segment(run.id)}/accept`, body);
      if (dry) return setTried(answer);
      toast(`${plural(answer.items, "item")} ${withdraw ? "no longer accepted" : "accepted"}`);
      return onClose();
    } catch (err) {
      return setError(err);
    } finally {
      setBusy("");
    }
  };
  const footer = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} type="submit" form=${id} value="dry" busy=${busy === "dry"} test="dry-run">Dry run<//>
    <${Button} kind="primary" icon="check" role="operator" type="submit" form=${id} value="accept" busy=${busy === "accept"} test="accept-go">${withdraw ? "Withdraw" : "Accept"}<//>`;
  return html`<${Dialog} title=${withdraw ? "Withdraw acceptance" : "Accept failures"} onClose=${onClose} footer=${footer} test="accept-dialog">
    <form class="rerun" id=${id} onSubmit=${submit}>
      <p class="rerun-what"><strong>${plural(items, "item")}</strong> of <${Text} max=${60}>${run.name || run.plan}<//>: ${what}</p>
      <p>${withdraw
        ? "They count as open failures again."
        : "They stay failed, are shown as accepted, and no longer count in health. A rerun withdraws the acceptance."}</p>
      <${Field} label="Reason" hint=${withdraw ? "for the audit log" : "shown with each of them"}>
        <input value=${reason} required=${!withdraw} maxlength="500" autocomplete="off" data-test="reason" onInput=${(e) => setReason(e.currentTarget.value)} />
      <//>
      <${ErrorBox} error=${error} />
      <div aria-live="polite">
        ${tried && html`<div class="tried" data-test="tried"><p>Dry run: ${plural(tried.items, "item")} would ${withdraw ? "no longer " : ""}be accepted; then ${num(tried.accepted)} of the ${num(tried.failed)} failed ones are. Nothing was changed.</p></div>`}
      </div>
    </form>
  <//>`;
}
