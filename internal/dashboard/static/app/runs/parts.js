// A strip of a schedule's last runs, how long a plan's took, and filters kept under a name.
import { html, useState } from "../html.js";
import { query } from "../api.js";
import { clock, duration, num, percent, plural } from "../format.js";
import { keep, kept } from "../storage.js";
import { Link, go } from "../router.js";
import { median, open, shade } from "./rows.js";
import { Button, Card, Dialog, ErrorBox, Field, Menu, Skeleton, toast, useLoad } from "../ui.js";

const says = (run) => (run.state !== "completed" ? run.state : open(run) > 0 ? percent(open(run) / run.items) + " failed" : "no failures");

/** A bar for each run, the newest last, filled from below by its failures. */
export function Strip({ runs }) {
  const bad = runs.filter((r) => open(r) > 0).length;
  return html`<span class="strip" role="img" data-test="strip" aria-label=${`Last ${plural(runs.length, "run")}: ${num(bad)} with failures`}>${
    runs.map((r) => html`<${Bar} key=${r.id} run=${r}/>`)}</span>`;
}

const Bar = ({ run, height, more = "" }) => html`<i class=${run.state} title=${says(run) + more} style=${{ "--share": shade(run) * 100 + "%", height }}></i>`;

const took = (run) => (new Date(run.finished_at) - new Date(run.started_at || run.created_at)) / 1000;

/** Durations shows how long a plan's last completed runs took, and the median. Reruns, timed by their last generation, are left out. */
export function Durations({ plan }) {
  const load = useLoad("/runs" + query({ plan, state: "completed", limit: 20 }), [], { every: 30 });
  const runs = (load.data?.runs ?? []).filter((r) => r.generation === 1).reverse();
  const middle = median(runs.map(took)), longest = Math.max(...runs.map(took));
  return html`<${Card} title="Runs" test="durations" actions=${html`<${Link} to=${"/runs" + query({ plan })}>All runs<//>`}>
    <${ErrorBox} error=${load.error} retry=${load.reload}/>
    ${!load.data && !load.error && html`<${Skeleton} lines=${2}/>`}
    ${load.data && runs.length === 0 && html`<p class="muted">None has completed yet.</p>`}
    ${runs.length > 0 && html`<p>Half of the last ${num(runs.length)} took at most <b>${duration(middle)}</b>, the longest ${duration(longest)}.</p>
      <span class="strip tall" role="img" style=${{ "--median": middle / longest * 100 + "%" }}
        aria-label=${`Time of the last ${plural(runs.length, "run")}, the newest last; median ${duration(middle)}`}>${
        runs.map((r) => html`<${Bar} key=${r.id} run=${r} height=${Math.max(4, took(r) / longest * 100) + "%"}
          more=${`, ${duration(took(r))}, ${clock(r.created_at, { date: true })}`}/>`)}</span>`}<//>`;
}

/** Filters of the list that this browser keeps under a name. The address of the page has them all, to share. */
export function Views({ here }) {
  const [name, setName] = useState(null); // of the view to be saved; null: no dialog
  const views = kept("views");
  const names = Object.keys(views), used = names.find((n) => views[n] === here);
  const store = (all) => {
    const err = keep("views", all);
    if (err) toast(err, { tone: "bad" });
  };
  const save = (e) => {
    e.preventDefault();
    store({ ...views, [name.trim()]: here });
    setName(null);
  };
  if (names.length === 0 && here === "") return null;
  return html`<${Menu} label="Views" test="views" kind="ghost" items=${[
    ...Object.entries(views).map(([n, search]) => ({ label: n, to: "/runs" + search, test: "view" })),
    names.length > 0 && here !== "" ? null : false,
    here !== "" && !used && { label: "Save this view…", icon: "start", test: "save-view", onClick: () => setName("") },
    used !== undefined && { label: `Forget “${used}”`, icon: "cross", test: "forget-view", onClick: () => {
      const { [used]: gone, ...rest } = views;
      store(rest);
      go("/runs" + here);
    } },
  ]}>Views<//>
  ${name !== null && html`<${Dialog} title="Save this view" test="save-view-dialog" onClose=${() => setName(null)}>
    <form class="column" onSubmit=${save}><${Field} label="Name" hint="in this browser; to share it, copy the address">
      <input value=${name} maxlength="60" required autofocus data-test="view-name" onInput=${(e) => setName(e.currentTarget.value)}/><//>
      <${Button} kind="primary" type="submit" test="view-save">Save<//></form><//>`}`;
}
