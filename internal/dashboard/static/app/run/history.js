// The history of a run, newest first, and a field for a note.
import { html, useState } from "../html.js";
import { Button, Card, ErrorBox, Skeleton, Text, Time, toast } from "../ui.js";
import { api, segment } from "../api.js";
import { plural } from "../format.js";
import { can } from "../session.js";
import { by, headline, more } from "../charts/happened.js";

const FIRST = 8; // entries shown at first

export function History({ run, history: { data, error, reload } }) {
  const [all, setAll] = useState(false);
  const entries = data?.entries ?? [];
  return html`<${Card} title="What happened" test="history" class="history">
    <${ErrorBox} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} lines=${3} />`}
    ${can("operator") && html`<${NoteForm} run=${run} onWritten=${reload} />`}
    <ol class="history-list" data-test="history-list">${entries.slice(0, all ? Infinity : FIRST).map((e) => html`<li
        key=${e.at + e.kind + e.what + e.who} class=${"is-" + e.kind}>
      <${Time} at=${e.at} mode="clock" />
      <span><strong>${headline(e)}</strong>${by(e) && html` by <${Text} max=${60}>${by(e)}<//>`}${
        more(e) && html`<span class="history-text"><${Text} max=${2000}>${more(e)}<//></span>`}</span></li>`)}</ol>
    ${entries.length > FIRST && !all && html`<div class="more"><${Button} small onClick=${() => setAll(true)}
        test="history-all">Show all ${plural(entries.length, "entry", "entries")}<//></div>`}
  <//>`;
}

function NoteForm({ run, onWritten }) {
  const [text, setText] = useState("");
  const write = async (e) => {
    e?.preventDefault();
    if (!text.trim()) return;
    try {
      await api.post(`/runs/${segment(run.id)}/notes`, { text: text.trim() });
      setText("");
      onWritten();
    } catch (err) {
      toast(err, { tone: "bad" });
    }
  };
  return html`<form class="note-form" onSubmit=${write}>
    <input type="text" maxlength="2000" aria-label="A note on this run" placeholder="A note on this run" value=${text}
      autocomplete="off" data-test="note" onInput=${(e) => setText(e.currentTarget.value)} />
    <${Button} icon="file" disabled=${!text.trim()} onClick=${write} test="write-note">Write<//>
  </form>`;
}
