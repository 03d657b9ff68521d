// Global search: pages, actions of the open page, runs, plans, endpoints, schedules, collectors, keys of the open run.
import { html, useEffect, useId, useState } from "./html.js";
import { api, query } from "./api.js";
import { inert, shortId } from "./format.js";
import { actionsHere, searchShown } from "./keys.js";
import { itemApi, itemPath } from "./parts/itempath.js";
import { named, places } from "./places.js";
import { go, route } from "./router.js";
import { can, sees } from "./session.js";
import { Dialog } from "./ui/overlays.js";

const MOST = 6;    // per kind
const WAIT = 150;  // ms after the last key before the server is queried

const fits = (text, words) => words.every((w) => text.toLowerCase().includes(w));

// pageActions is the buttons in the head of the open page that can be pressed.
const pageActions = () => [...document.querySelectorAll("#main .page-actions .btn")]
  .filter((e) => e.innerText?.trim() && e.ariaDisabled !== "true")
  .map((e) => ({ kind: "Action", text: e.innerText.trim(), note: "this page", open: () => e.click() }));

// local searches without the server: [{kind, text, note, open()}].
function local(words) {
  const all = [
    ...pageActions(),
    ...(can("operator", "runs") ? [{ kind: "Action", text: "Start a run", open: () => go("/start") }] : []),
    ...actionsHere().map(({ key, label, fn }) => ({ kind: "Action", text: label, note: key, open: fn })),
    ...places.filter(sees).map(([path, label, , key]) =>
      ({ kind: "Page", text: label, note: "g " + key, open: () => go(path) })),
  ];
  return all.filter((one, i) => fits(one.text, words) && all.findIndex((o) => o.kind === one.kind && o.text === one.text) === i);
}

async function remote(text, words, signal) {
  const ask = (path) => api.get(path, { signal }).catch((err) => {
    if (err.name === "AbortError") throw err;
    return {};
  });
  const { page, params } = route.value;
  const inRun = ["run", "errors", "item"].includes(page);
  const [runs, plans, endpoints, schedules, collectors, items] = await Promise.all([
    ask("/runs" + query({ q: text, limit: MOST })), ask("/plans"), ask("/endpoints"), ask("/schedules"), ask("/collectors"),
    inRun ? ask(itemApi(params.run, text)) : {},
  ]);
  const those = (kind, list, to) => (list ?? []).filter((one) => fits(one.name, words)).slice(0, MOST)
    .map(({ name }) => ({ kind, text: name, open: () => go(named(to, name)) }));
  return [
    ...(items.items ?? []).slice(0, 1).map(() => ({ kind: "Item", text, note: "of this run", open: () => go(itemPath(params.run, text)) })),
    ...(runs.runs ?? []).map((r) => ({ kind: "Run", text: r.name || r.plan, note: `${r.state} · ${shortId(r.id)}`,
      open: () => go("/runs/" + r.id) })),
    ...those("Plan", plans.plans, "/plans"), ...those("Endpoint", endpoints.endpoints, "/endpoint"),
    ...those("Schedule", schedules.schedules, "/schedules"), ...those("Collector", collectors.collectors, "/collectors"),
  ];
}

export function Search() {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]); // null: being searched
  const [at, setAt] = useState(0);
  const id = useId();
  const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  useEffect(() => {
    const abort = new AbortController();
    setFound(text.trim() ? null : []);
    if (!text.trim()) return undefined;
    const timer = setTimeout(() => remote(text.trim(), words, abort.signal).then(setFound, () => {}), WAIT);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);
  const all = [...local(words), ...(words.length > 0 ? found ?? [] : [])];
  const chosen = Math.min(at, all.length - 1);
  const close = () => { searchShown.value = false; };
  const open = (one) => {
    close();
    one?.open();
  };
  const keys = (e) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (by) setAt((chosen + by + all.length) % all.length);
    else if (e.key === "Enter") open(all[chosen]);
    else return;
    e.preventDefault();
  };
  const row = (one, i) => html`<li key=${one.kind + one.text + (one.note ?? "")} id=${`${id}-${i}`} role="option"
      aria-selected=${String(i === chosen)} onClick=${() => open(one)} onPointerMove=${() => setAt(i)} data-test="found">
    <span class="muted">${one.kind}</span><bdi class="grow">${inert(one.text, 120)}</bdi>${one.note && html`<kbd>${inert(one.note, 40)}</kbd>`}</li>`;
  return html`<${Dialog} title="Search" test="search" onClose=${close}>
    <input type="search" autofocus value=${text} placeholder="Runs, keys, endpoints, plans, schedules, pages, actions" aria-label="Search for"
      role="combobox" aria-expanded="true" aria-controls=${id} aria-activedescendant=${all.length > 0 ? `${id}-${chosen}` : undefined}
      autocomplete="off" spellcheck="false" onKeyDown=${keys} data-test="search-text"
      onInput=${(e) => { setText(e.currentTarget.value); setAt(0); }}/>
    <ul class="found" id=${id} role="listbox" aria-label="What was found">${all.map(row)}</ul>
    <p class="muted" role="status">${!found ? "Searching…" : all.length === 0 ? "Nothing found." : ""}</p><//>`;
}
