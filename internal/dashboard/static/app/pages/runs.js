import { html } from "../html.js";
import { Page, Card, Table, StateBadge, Progress, Time, ErrorBox, Empty, useLoad, Skeleton } from "../ui.js";
import { Link } from "../router.js";
import { shortId, inert } from "../format.js";

export default function Runs() {
  const { data, error, reload } = useLoad("/runs", [], { every: 2 });
  return html`<${Page} title="Runs"><${ErrorBox} error=${error} retry=${reload}/>
    ${!data && !error && html`<${Skeleton}/>`}
    ${data && html`<${Card} flush><${Table} rows=${data.runs} rowKey=${(r) => r.id} href=${(r) => "/runs/" + r.id}
      empty=${html`<${Empty} title="No runs yet"/>`} columns=${[
        { key: "name", title: "Run", render: (r) => html`<${Link} to=${"/runs/" + r.id}><bdi>${inert(r.name || shortId(r.id))}</bdi><//>` },
        { key: "state", title: "State", render: (r) => html`<${StateBadge} state=${r.state} failed=${r.failed}/>` },
        { key: "progress", title: "Progress", render: (r) => html`<${Progress} done=${r.done} failed=${r.failed} total=${r.items}/>` },
        { key: "created_at", title: "Started", render: (r) => html`<${Time} at=${r.created_at}/>` },
      ]}/><//>`}<//>`;
}
