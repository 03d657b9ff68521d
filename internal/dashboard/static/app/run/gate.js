// A step that waits for somebody: what would go on, some of its results, what is other than in the run before, and the word
// that lets it begin. What changes nothing stands first.
import { html } from "../html.js";
import { Button, ButtonLink, Card, ErrorBox, Field, Skeleton, Text, Time, confirm, toast, useLoad } from "../ui.js";
import { BASE, api, query, segment } from "../api.js";
import { bytes, inert, num, plural, shortId } from "../format.js";
import { itemPath } from "../parts/itempath.js";
import { Link } from "../router.js";

/** Gates are the gates of a run at which somebody is waited for. */
export function Gates({ run }) {
  const waiting = run.state === "completed" || run.state === "cancelled" ? [] : run.approval ?? [];
  return waiting.map((step) => html`<${Gate} key=${step} run=${run} step=${step} />`);
}

function Gate({ run, step }) {
  const gate = useLoad(`/runs/${segment(run.id)}/gate` + query({ step }), [run.generation]);
  const g = gate.data;
  const compared = useLoad(g?.earlier
    ? `/runs/${segment(run.id)}/report` + query({ against: g.earlier.run, before: step, digests: "false" }) : "", [run.generation]);
  const name = inert(step, 60);
  return html`<${Card} title=${`Step ${name} waits for an approval`} class="canary waits" test="gate">
    <${ErrorBox} error=${gate.error} retry=${gate.reload} />
    ${!g && !gate.error && html`<${Skeleton} lines=${5} />`}
    ${g && html`
      <p><strong>${plural(g.items, "item goes", "items go")} on</strong> when somebody has looked${g.left_out > 0 && html`; <b
          class="bad-text">${num(g.left_out)}</b> are left out`}.${g.since && html` It has waited <${Time} at=${g.since} mode="for" />.`}</p>
      ${g.refused && html`<p class="run-reason warn" data-test="gate-refused"><span><${Text} max=${300}>${g.refused}<//></span></p>`}
      <ul class="gate-steps" data-test="gate-before">${g.before.map((b) => html`<li key=${b.step}><${Text} max=${40}>${b.step}<//>:
        ${num(b.done)} done, <b class=${b.failed > 0 ? "bad-text" : ""}>${num(b.failed)} failed</b></li>`)}</ul>
      <${Differences} run=${run} gate=${g} compared=${compared} />
      <${Sample} run=${run} items=${g.sample} />
      <div class="card-buttons">
        ${g.left_out > 0 && html`<${ButtonLink} to=${`/runs/${segment(run.id)}/errors`} icon="warn">What failed<//>`}
        <${Button} icon="repeat" onClick=${gate.reload} test="gate-more">Other items<//>
        <${Button} kind="primary" icon="play" role="operator" disabled=${Boolean(g.refused)} title=${g.refused}
            onClick=${() => approve(run, g)} test="gate-approve">Let ${name} begin…<//>
      </div>`}
  <//>`;
}

function Differences({ run, gate, compared }) {
  const earlier = gate.earlier;
  if (!earlier) return html`<p class="muted">There is no earlier run to compare with.</p>`;
  const found = compared.data?.against?.changes.filter((c) => c.items > 0);
  return html`<p>Against <${Link} to=${`/runs/${segment(earlier.run)}`}><${Text}
      max=${60}>${earlier.name || shortId(earlier.run)}<//><//>, which had ${plural(earlier.items, "item")} and
      ${num(earlier.failed)} failures:</p>
    <${ErrorBox} error=${compared.error} />
    ${!found && !compared.error && html`<${Skeleton} lines=${2} />`}
    ${found && html`<ul class="gate-steps" data-test="gate-changes">${found.map((c) => html`<li
        key=${c.change}>${inert(c.change.replaceAll("_", " "))}: <b>${num(c.items)}</b></li>`)}</ul>`}`;
}

function Sample({ run, items }) {
  if (items.length === 0) return null;
  return html`<table class="plain" data-test="gate-sample"><caption class="muted">Some of the items that go on, by chance</caption>
    <tbody>${items.map((item) => html`<tr key=${item.ordinal}>
      <td><${Link} to=${itemPath(run.id, item.key, item.ordinal)}><${Text} max=${40}>${item.key}<//><//></td>
      <td>${item.results.map((r) => html`<a key=${r.step} class="gate-result" download
          href=${`${BASE}/runs/${segment(run.id)}/items/${segment(item.key)}/result` + query({ step: r.step, ordinal: String(item.ordinal) })}><${Text}
          max=${40}>${r.step}<//>, ${bytes(r.bytes)}</a>`)}</td></tr>`)}</tbody></table>`;
}

function approve(run, gate) {
  const why = { current: null };
  return confirm({
    title: `Let step ${inert(gate.step, 60)} begin?`, action: "Let it begin", test: "gate-dialog",
    body: html`<p>${plural(gate.items, "item goes", "items go")} on, and what is sent cannot be taken back.</p>
      <${Field} label="Why" hint="For the audit log"><input maxlength="500" ref=${why} data-test="gate-reason" /><//>`,
    act: async () => {
      const answer = await api.post(`/runs/${segment(run.id)}/approve`,
        { step: gate.step, seen: gate.since, reason: why.current?.value ?? "" });
      toast(`${plural(answer.items, "item")} go on`);
    },
  });
}
