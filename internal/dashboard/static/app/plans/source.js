// The source of a plan, collector or schedule: shown with line numbers, and edited with errors at their lines.
import { html, useEffect, useRef, useState } from "../html.js";
import { Button, ErrorBox, Icon, toast } from "../ui.js";
import { api, query } from "../api.js";
import { inert } from "../format.js";

export const template = `# What happens to each item, step by step.
name: my-plan
max_failed: 1%          # more failures pause the run
steps:
  - name: first
    endpoint: NAME      # of a service; see the Endpoints page
    chunk: 200          # items in a request, or auto
    max_attempts: 3
  - name: second
    endpoint: OTHER
    needs: [first]      # gets what first found out
`;

const lines = (text) => text.replace(/\n$/, "").split("\n");

// color splits a line of YAML into comment, key and rest: enough to read it well.
function color(line) {
  const comment = /(^|\s)#.*$/.exec(line);
  const body = comment ? line.slice(0, comment.index + comment[1].length) : line;
  const rest = comment ? line.slice(comment.index + comment[1].length) : "";
  const key = /^(\s*(?:-\s+)?)([\w.-]+)(:)(?=\s|$)/.exec(body);
  const shown = (text) => inert(text.replaceAll("\t", "  "));
  return html`${key ? html`${key[1]}<span class="y-key">${shown(key[2])}</span>${key[3]}${shown(body.slice(key[0].length))}` : shown(body)}${
    rest && html`<span class="y-note">${shown(rest)}</span>`}`;
}

export function Source({ text, kind = "plan" }) {
  return html`<div class="source" tabindex="0" role="region" aria-label=${"Text of the " + kind} data-test="source"><table><tbody>${lines(text).map((line, i) =>
    html`<tr key=${i}><td class="source-line" data-line=${i + 1} aria-hidden="true"></td><td><code>${color(line)}</code></td></tr>`)}</tbody></table></div>`;
}

// Editor saves a new version of a plan, or of another kind. Errors are shown at their lines. version is the newest one:
// if another is newer when this is saved, that is a conflict. 0: it is a new one.
export function Editor({ kind = "plan", note = "Runs that are in progress keep theirs.", name = "", version = 0, source, onApplied, onCancel }) {
  const [text, setText] = useState(source);
  const [begun] = useState(version);
  const [error, setError] = useState(null);
  const area = useRef(null);
  const gutter = useRef(null);
  const wrong = new Map((error?.errors || []).filter((e) => e.location === kind + ".line").map((e) => [Number(e.value), e.message]));
  const sync = () => { gutter.current.scrollTop = area.current.scrollTop; };
  useEffect(() => area.current.focus(), []);
  useEffect(() => {
    const first = Math.min(...wrong.keys());
    if (!Number.isFinite(first)) return;
    const before = lines(text).slice(0, first - 1).join("\n").length + (first > 1 ? 1 : 0);
    area.current.focus();
    area.current.setSelectionRange(before, before + (lines(text)[first - 1] || "").length);
    area.current.scrollTop = Math.max(0, (first - 5) * 20);
  }, [error]);
  const apply = async () => {
    setError(null);
    try {
      onApplied(await api.post(`/${kind}s` + query({ name: /^name:/m.test(text) ? "" : name }), text,
        { type: "application/yaml", headers: begun ? { "If-Match": `"${begun}"` } : { "If-None-Match": "*" } }));
    } catch (err) {
      if (!err.errors) throw err;
      setError(err);
      if (err.status === 0) toast(err, { tone: "bad" });
    }
  };
  const keys = (e) => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) {
      e.preventDefault();
      apply();
    }
  };
  return html`<div class="editor">
    <div class="editor-text">
      <div class="editor-gutter" ref=${gutter} aria-hidden="true">${text.split("\n").map((_, i) => html`<span key=${i}
        class=${wrong.has(i + 1) ? "wrong" : ""}>${i + 1}</span>`)}</div>
      <textarea ref=${area} class="code" aria-label=${`The ${kind} in YAML`} aria-invalid=${error ? "true" : undefined} aria-describedby="plan-errors"
        spellcheck=${false} autocapitalize="off" autocomplete="off" wrap="off" rows=${Math.min(32, Math.max(14, lines(text).length + 2))}
        value=${text} data-test="plan-source" onScroll=${sync} onKeyDown=${keys} onInput=${(e) => { setText(e.currentTarget.value); setError(null); }}></textarea>
    </div>
    <div id="plan-errors" aria-live="polite">${error && (wrong.size > 0 ? html`<ul class="editor-errors" data-test="plan-errors">${[...wrong].map(
      ([line, message]) => html`<li key=${line}><${Icon} name="warn"/><b>Line ${line}</b> <bdi>${inert(message)}</bdi></li>`)}</ul>`
      : html`<div class="editor-box"><${ErrorBox} error=${error} title="Not saved" test="plan-errors"/></div>`)}</div>
    <div class="editor-foot"><span class="muted">Nothing changes when it is the same as before. ${note}</span>
      <div class="row"><${Button} onClick=${onCancel} test="cancel-edit">Cancel<//>
      <${Button} kind="primary" icon="check" role="operator" onClick=${apply} title="Ctrl-Enter" test="apply">Save<//></div></div>
  </div>`;
}
