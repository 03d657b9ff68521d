// What the pages of plans, schedules, alerts and collectors share.
import { html } from "../html.js";
import { Button, Card, Copy, Empty, ErrorBox, Page, Skeleton, Table, confirm, toast, useLoad } from "../ui.js";
import { named } from "../places.js";
import { setQuery } from "../router.js";
import { api, segment } from "../api.js";
import { inert } from "../format.js";
import { Editor, Source } from "../plans/source.js";

const titled = (kind) => kind[0].toUpperCase() + kind.slice(1);

export const at = (kind) => (d) => named(`/${kind}s`, d.name);

/** Documents is the page of a kind, like /alerts: the list, with ?name= one document, and with ?edit=new the editor. */
export function Documents({ kind, icon, what, template, note, every, columns, One, query }) {
  const { name = "", edit = "" } = query;
  const list = useLoad(!name && !edit && `/${kind}s`, [], { every });
  const applied = (answer) => {
    for (const warning of answer.warnings || []) toast(warning, { tone: "warn" });
    toast(answer.unchanged ? `${answer.name} is the same as version ${answer.version}; nothing was done`
      : `${answer.name} is version ${answer.version} now`, { tone: answer.unchanged ? "info" : "ok" });
    setQuery({ name: answer.name, version: "", edit: "" });
  };
  const title = titled(kind) + "s";
  const command = `tranche ${kind} apply ${kind}.yaml`;
  if (edit === "new") {
    return html`<${Page} title=${"New " + kind} crumbs=${[[title, `/${kind}s`]]}><${Card} flush label=${"New " + kind}>
      <${Editor} kind=${kind} note=${note} source=${template} onApplied=${applied} onCancel=${() => setQuery({ edit: "" })}/><//><//>`;
  }
  if (name) return html`<${One} name=${name} query=${query} editing=${edit === "1"} onApplied=${applied}/>`;
  return html`<${Page} title=${title} test=${kind + "s-page"} actions=${html`<${Button} kind="primary" icon="start" role="operator"
      test=${"new-" + kind} onClick=${() => setQuery({ edit: "new" }, { replace: false })}>New ${kind}<//>`}>
    <${ErrorBox} error=${list.error} retry=${list.reload}/>
    ${!list.data && !list.error && html`<${Card}><${Skeleton} lines=${4}/><//>`}
    ${list.data && html`<${Card} flush label=${title}><${Table} caption=${title} test=${kind + "s"} rows=${list.data[kind + "s"] || []}
      rowKey=${(d) => d.name} href=${at(kind)} columns=${columns} empty=${html`<${Empty} icon=${icon} title=${`No saved ${kind}s`} test=${`no-${kind}s`}>
        <p>${what}</p><div class="commands"><div><code>${command}</code><${Copy} text=${command}/></div></div><//>`}/><//>`}
  <//>`;
}

export const removal = (kind, name, body) => async () => {
  const done = await confirm({
    title: `Delete ${inert(name, 60)}?`, action: `Delete the ${kind}`, danger: true, test: "delete-dialog", body,
    act: () => api.del(`/${kind}s/${segment(name)}`),
  });
  if (!done) return;
  toast(`${inert(name, 60)} is deleted`);
  setQuery({ name: "", version: "", edit: "" });
};

/** posting runs an operation on a document and reloads what it changed. */
export const posting = (kind, name, again) => async (what, says) => {
  try {
    await api.post(`/${kind}s/${segment(name)}/${what}`, {});
    toast(says);
    again();
  } catch (err) {
    toast(err, { tone: "bad" });
  }
};

/** Document is the page of a document that can be paused: its actions, content (children) and source. */
export function Document({ kind, name, load, editing, onApplied, note, subtitle, act, pauses, resumes, deletes, more, children }) {
  const d = load.data;
  const paused = d?.state === "paused";
  const label = `Delete the ${kind}`;
  const actions = d && !editing && html`<${Button} kind="ghost" icon="trash" role="operator" label=${label} title=${label} test="delete"
      onClick=${removal(kind, name, deletes)}/>
    <${Button} role="operator" onClick=${() => setQuery({ edit: "1" }, { replace: false })} test="edit">Change<//>
    <${Button} role="operator" icon=${paused ? "play" : "pause"} test=${paused ? "resume" : "pause"}
      onClick=${() => (paused ? act("resume", resumes) : act("pause", pauses))}>${paused ? "Resume" : "Pause"}<//>
    <${Button} kind="primary" role="operator" icon=${more.icon} onClick=${() => act(more.what, more.says)} test=${more.what}>${more.label}<//>`;
  return html`<${Page} title=${name} crumbs=${[[titled(kind) + "s", `/${kind}s`]]} test=${kind + "-page"} actions=${actions} subtitle=${d && subtitle}>
    <${ErrorBox} error=${load.error} retry=${load.reload}/>
    ${!d && !load.error && html`<${Card}><${Skeleton} lines=${8}/><//>`}
    ${d && editing && html`<${Card} flush label="Change"><${Editor} kind=${kind} name=${name} version=${d.version} note=${note} source=${d.source || ""}
      onApplied=${onApplied} onCancel=${() => setQuery({ edit: "" })}/><//>`}
    ${d && !editing && children}
  <//>`;
}

export function SourceCard({ kind, text = "" }) {
  return html`<${Card} flush title="Source" actions=${html`<${Copy} text=${text} label="Copy the source"/>`}><${Source} kind=${kind} text=${text}/><//>`;
}
