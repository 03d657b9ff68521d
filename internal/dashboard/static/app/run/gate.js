// A step that waits for approval: what would continue, sample results, differences from the previous run, and the
// approval. Actions that change nothing come first.
import { html, useRef } from "../html.js";
import { Button, ButtonLink, Card, ErrorBox, Field, Icon, Skeleton, Text, Time, confirm, toast, useLoad } from "../ui.js";
import { api, query, segment } from "../api.js";
import { bytes, inert, num, plural, shortId } from "../format.js";
import { itemPath, resultPath } from "../parts/itempath.js";
import { outcomes } from "../parts/outcomes.js";
import { Link } from "../router.js";

/** Gates are the gates of a run that wait for approval, and those that stopped waiting while shown. */
export function Gates({ run }) {
  const shown = useRef(new Set());
  if (run.state === "completed" || run.state === "cancelled") return null;
  for (const step of run.approval ?? []) shown.current.add(step);
  return [...shown.current].map((step) => html`<${Gate} key=${step} run=${run} step=${step} />`);
}

function Gate({ run, step }) {
  const path = `/runs/${segment(run.id)}/gate` + query({ step });
  const gate = useLoad(path, [run.generation, run.approval?.includes(step)]);
  const g = gate.data;
  const looked = useRef(null); // as first shown
  if (g?.state === "waiting") looked.current ??= g;
  const news = g && changed(looked.current, g);
  const name = inert(step, 60);
  const title = { approved: `Step ${name} was approved`, shut: `Step ${name} does not wait any more` }[g?.state] ??
    `Step ${name} waits for approval`;
  return html`<${Card} title=${title} class=${"canary " + (g && g.state !== "waiting" ? "" : "waits")} test="gate">
    <${ErrorBox} error=${gate.error} retry=${gate.reload} />
    ${!g && !gate.error && html`<${Skeleton} lines=${5} />`}
    ${g?.state === "approved" && html`<p>By <${Text} max=${60}>${g.approved_by}<//>, <${Time} at=${g.approved_at} />. There is nothing more to do here.</p>`}
    ${g?.state === "shut" && html`<p>Earlier steps are being rerun. Then it waits for approval again.</p>`}
    ${g?.state === "waiting" && html`<${Waiting} run=${run} gate=${g} news=${news} reload=${gate.reload}
        onApprove=${() => approve(run, g, news, path, gate.reload)} />`}
  <//>`;
}

function Waiting({ run, gate: g, news, reload, onApprove }) {
  const name = inert(g.step, 60);
  const compared = useLoad(g.earlier
    ? `/runs/${segment(run.id)}/report` + query({ against: g.earlier.run, before: g.step, digests: "false" }) : "", [g.since]);
  return html`
    ${news && html`<div class="run-reason warn gate-news" role="status" data-test="gate-news"><${Icon} name="warn"/><div><strong>Changed since
      you looked:</strong> earlier steps were rerun.<${News} news=${news} /></div></div>`}
    <p><strong>${plural(g.items, "item continues", "items continue")}</strong> after approval${g.left_out > 0 && html`; <b
        class="bad-text">${num(g.left_out)}</b> are left out`}.${g.since && html` It has waited <${Time} at=${g.since} mode="for" />.`}</p>
    ${g.refused && html`<p class="run-reason warn" data-test="gate-refused"><span><${Text} max=${300}>${g.refused}<//></span></p>`}
    <ul class="gate-steps" data-test="gate-acts">${g.acts.map((a) => html`<li key=${a.actor + a.action}><b>${inert(a.actor, 60)}</b> ${a.action} <${Time} at=${a.at}/></li>`)}</ul>
    <ul class="gate-steps" data-test="gate-before">${g.before.map((b) => html`<li
      key=${b.step}><${Text} max=${40}>${b.step}<//>: ${num(b.done)} done, <b class=${b.failed > 0 ? "bad-text" : ""}>${num(b.failed)} failed</b></li>`)}</ul>
    <${Differences} run=${run} gate=${g} compared=${compared} />
    <${Sample} run=${run} items=${g.sample} />
    <div class="card-buttons">
      ${g.left_out > 0 && html`<${ButtonLink} to=${`/runs/${segment(run.id)}/errors`} icon="warn">What failed<//>`}
      <${Button} icon="repeat" onClick=${reload} test="gate-more">Other items<//>
      <${Button} kind=${g.left_out > 0 ? "" : "primary"} icon="play" role="operator" disabled=${Boolean(g.refused)} title=${g.refused}
          onClick=${onApprove} test="gate-approve">Approve ${name}…<//>
    </div>`;
}

// changed lists what changed at a gate since it was shown; nothing if it has waited ever since.
function changed(looked, g) {
  if (g.state !== "waiting" || looked.since === g.since) return null;
  const counts = (of) => [["items that continue", of.items], ["items left out", of.left_out],
    ...of.before.flatMap((b) => [["done", b.done, b.step], ["failed", b.failed, b.step]])]
    .map(([what, n, step]) => ({ key: `${step ?? ""}: ${what}`, what: step ? `${inert(step, 40)}: ${what}` : what, n }));
  const before = new Map(counts(looked).map((c) => [c.key, c.n]));
  return counts(g).filter((c) => before.get(c.key) !== c.n).map((c) => ({ ...c, before: before.get(c.key) }));
}

function News({ news }) {
  if (news.length === 0) return html` The counts are the same; the results may be others.`;
  return html`<ul class="gate-steps">${news.map((c) => html`<li key=${c.key}>${c.what}: ${num(c.before)} → <b>${num(c.n)}</b></li>`)}</ul>`;
}

// Differences lists all outcomes from the first frame, so that the button below stays in place.
function Differences({ run, gate, compared }) {
  const earlier = gate.earlier;
  if (!earlier) return html`<p class="muted">There is no earlier run to compare with.</p>`;
  const found = compared.data && new Map(compared.data.against?.changes.map((c) => [c.change, c.items]));
  return html`<p>Against <${Link} to=${`/runs/${segment(earlier.run)}`}><${Text}
      max=${60}>${earlier.name || shortId(earlier.run)}<//><//>, which had ${plural(earlier.items, "item")} and
      ${num(earlier.failed)} failures:</p>
    <${ErrorBox} error=${compared.error} />
    <ul class="gate-steps gate-changes" data-test="gate-changes" aria-busy=${String(!found && !compared.error)}>${Object.entries(outcomes).map(([c, [title]]) => html`<li
        key=${c}>${title.toLowerCase()}: <b>${found ? num(found.get(c) ?? 0) : "–"}</b></li>`)}</ul>`;
}

function Sample({ run, items }) {
  if (items.length === 0) return null;
  return html`<table class="plain gate-sample" data-test="gate-sample"><caption class="muted">A random sample of the items that continue</caption>
    <tbody>${items.map((item) => html`<tr key=${item.ordinal}>
      <td><${Link} to=${itemPath(run.id, item.key, item.ordinal)}><${Text} max=${40}>${item.key}<//><//></td>
      <td>${item.results.map((r) => html`<a key=${r.step} class="gate-result" download
          href=${resultPath(run.id, item, r.step)}><${Text}
          max=${40}>${r.step}<//>, ${bytes(r.bytes)}</a>`)}</td></tr>`)}</tbody></table>`;
}

// approve asks for confirmation and releases what was shown. If that changed meanwhile, the page shows the change and
// the user must confirm again.
async function approve(run, gate, news, path, reload) {
  const why = { current: null };
  const step = inert(gate.step, 60);
  const answer = await confirm({
    title: `Approve step ${step}?`, action: "Approve", test: "gate-dialog",
    body: html`<p>${plural(gate.items, "item continues", "items continue")}; what is sent cannot be undone.</p>
      ${news && html`<p>Since you first looked:<${News} news=${news} /></p>`}
      <${Field} label="Why" hint="For the audit log"><input maxlength="500" ref=${why} data-test="gate-reason" /><//>`,
    act: async () => {
      try {
        return await api.post(`/runs/${segment(run.id)}/approve`,
          { step: gate.step, if_waiting_since: gate.since, reason: why.current?.value ?? "" });
      } catch (err) {
        const now = err.status === 409 && await api.get(path);
        if (now?.state !== "waiting" || now.since === gate.since) throw err;
        return { stale: true };
      }
    },
  });
  if (answer?.stale) {
    toast(`Step ${step} was not approved: it changed since you looked`, { tone: "warn" });
    reload();
  } else if (answer) {
    toast(`${plural(answer.items, "item continues", "items continue")}`);
  }
}
