// Dead letters to requeue or drop, and quarantined messages.

import { html } from "../html.js";
import { Page, Tabs } from "../ui.js";
import { setQuery } from "../router.js";
import { DeadLetters } from "../parts/deadletters.js";
import { Quarantine } from "../parts/quarantine.js";

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
