// Dead letters to requeue or drop, and quarantined messages.

import { html } from "../html.js";
import { Button, Card, Dialog, Empty, ErrorBox, Page, Skeleton, Table, Tabs, Text, Time, useLoad } from "../ui.js";
import { Link, setQuery } from "../router.js";
import { query as params, segment } from "../api.js";
import { bytes, inert, num, shortId } from "../format.js";
import { DeadLetters } from "../parts/deadletters.js";
import { Long } from "../parts/jsonview.js";
import { More, usePages } from "../parts/paged.js";
import { Typed } from "../parts/typed.js";
import { Body, Fact, Headers } from "../parts/letter.js";

const tabs = [{ id: "letters", label: "Dead letters" }, { id: "quarantine", label: "Quarantine" }];

/** Letters is the page /dead-letters. Its query has the tab, the filters and the open letter. */
export default function Letters({ query }) {
  const tab = query.tab === "quarantine" ? "quarantine" : "letters";
  return html`<${Page} title="Dead letters" test="letters-page"
    subtitle=${tab === "letters" ? "Requests that no service could handle; they are not retried automatically" : "Rejected messages, with the reason; they count for nothing"}>
    <${Tabs} tabs=${tabs} value=${tab} label="What" name="letters" onChange=${(id) => setQuery({ tab: id === "letters" ? "" : id, letter: "", message: "", endpoint: "", state: "", run: "" })} />
    <div role="tabpanel" id="letters-panel" class="column" aria-label=${tabs.find((t) => t.id === tab).label}>
      ${tab === "letters" ? html`<${DeadLetters} query=${query} />` : html`<${Quarantine} query=${query} />`}
    </div>
  <//>`;
}

// Quarantined messages: the reason and the content.
function Quarantine({ query }) {
  const pathOf = (after) => `/quarantine${params({ run: query.run, after, limit: 50 })}`;
  const pages = usePages(pathOf, (d) => d.messages ?? [], (m) => m.id, [], { every: 5 });
  const open = (m) => setQuery({ message: m.id }, { replace: false });
  return html`
    <div class="filterbar" role="group" aria-label="Filters">
      <${Typed} label="Run" placeholder="Run: id, name or last" value=${query.run} search test="filter-run" onChange=${(run) => setQuery({ run })} />
    </div>
    <${ErrorBox} error=${pages.error} retry=${pages.reload} />
    <${Card} flush class="letter-list">
      ${!pages.rows && !pages.error && html`<div class="pad"><${Skeleton} lines=${6} /></div>`}
      ${pages.rows &&
      html`<${Table} caption="Messages in quarantine" test="quarantine" rows=${pages.rows} rowKey=${(m) => m.id} onOpen=${open}
        empty=${html`<${Empty} icon="check" title="Nothing is in quarantine" test="empty" />`}
        columns=${[
          {
            key: "reason",
            title: "Reason",
            label: "",
            class: "wide",
            render: (m) => html`<button type="button" class="link letter-open" onClick=${() => open(m)}><code>${inert(m.reason, 60)}</code></button>
              <p class="clamp muted"><bdi>${inert(m.detail, 400)}</bdi></p>`,
          },
          { key: "subject", title: "Subject", hide: "narrow", render: (m) => html`<${Text} max=${48} code>${m.subject}<//>` },
          { key: "run", title: "Run", render: (m) => (m.run ? html`<${Link} to=${`/runs/${segment(m.run)}`}><code>${shortId(m.run)}</code><//>` : html`<span class="muted">not said</span>`) },
          { key: "size", title: "Size", align: "right", hide: "narrow", render: (m) => html`<span class="num">${bytes(m.size)}</span>` },
          { key: "at", title: "Came", align: "right", render: (m) => html`<${Time} at=${m.at} />` },
        ]} />`}
    <//>
    <${More} pages=${pages} />
    ${query.message && html`<${MessageDialog} id=${query.message} onClose=${() => setQuery({ message: "" })} />`}
  `;
}

function MessageDialog({ id, onClose }) {
  const { data: m, error, reload } = useLoad(`/quarantine/${segment(id)}`);
  return html`<${Dialog} wide title=${`Message ${num(Number(id))} in quarantine`} onClose=${onClose} test="message-dialog" footer=${html`<${Button} onClick=${onClose}>Close<//>`}>
    <${ErrorBox} error=${error} retry=${reload} />
    ${!m && !error && html`<${Skeleton} lines=${6} />`}
    ${m &&
    html`<div class="letter-head"><code>${inert(m.reason, 100)}</code></div>
      <p class="letter-message"><${Long} text=${m.detail} most=${1000} /></p>
      <dl class="facts">
        <div><dt>came</dt><dd><${Time} at=${m.at} /> (<${Time} at=${m.at} mode="clock" />)</dd></div>
        <${Fact} name="subject" value=${m.subject} code />
        ${m.run && html`<div><dt>run</dt><dd><${Link} to=${`/runs/${segment(m.run)}`}><code>${m.run}</code><//></dd></div>`}
        <${Fact} name="slice" value=${m.slice} code />
      </dl>
      <${Headers} headers=${m.headers} />
      <${Body} body=${m.body} full />`}
  <//>`;
}
