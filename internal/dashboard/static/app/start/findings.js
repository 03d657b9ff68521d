// The result of a dry run: items, requests and oddities.
import { html } from "../html.js";
import { Icon, Text } from "../ui.js";
import { bytes, num, plural } from "../format.js";

export function Findings({ found }) {
  return html`<div class="column" data-test="findings">
    <dl class="start-facts">
      <div><dt>Items</dt><dd>${num(found.items)}</dd></div>
      <div><dt>Payload</dt><dd>${bytes(found.bytes)}</dd></div>
      ${found.skipped > 0 && html`<div><dt>Duplicates left out</dt><dd class="is-warn">${num(found.skipped)}</dd></div>`}
      ${found.held > 0 && html`<div><dt>Held for the canary</dt><dd>${num(found.held)}</dd></div>`}
    </dl>
    <div class="table-box"><table><thead><tr><th scope="col">Step</th><th scope="col" class="right">Requests</th>
      <th scope="col" class="right">Chunk</th><th scope="col" class="right">Services</th></tr></thead>
      <tbody>${found.steps.map((s) => html`<tr key=${s.name}><td><${Text} max=${40}>${s.name}<//><span class="under"><${Text}
          max=${40}>${s.endpoint || s.kind}<//></span></td>
        <td class="right">${num(s.requests)}</td>
        <td class="right nowrap">${s.chunk_auto ? "auto ≤ " : ""}${num(s.chunk)}</td>
        <td class=${"right " + (s.services === 0 ? "is-warn" : "")}>${s.services === undefined ? "–" : num(s.services)}</td></tr>`)}
      </tbody></table></div>
    ${found.existing && html`<p class="notice warn"><${Icon} name="warn"/>This start has made the run ${found.existing} already.</p>`}
    ${(found.warnings || []).length > 0 ? found.warnings.map((w) => html`<p class="notice warn"><${Icon} name="warn"/>
      <bdi>${w}</bdi></p>`) : html`<p class="notice ok"><${Icon} name="check"/>${plural(found.items, "item")} read; nothing is amiss.</p>`}
  </div>`;
}
