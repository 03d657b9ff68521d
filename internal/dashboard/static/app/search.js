// Global search: pages, runs, plans, endpoints, keys of the current run, and actions.
import { html, useEffect, useId, useState } from "./html.js";
import { api, query } from "./api.js";
import { inert, shortId } from "./format.js";
import { actionsHere, searchShown } from "./keys.js";
import { itemPath } from "./parts/itempath.js";
import { places } from "./places.js";
import { go, route } from "./router.js";
import { can } from "./session.js";
import { Dialog } from "./ui/overlays.js";

const MOST = 6;    // per kind
const WAIT = 150;  // ms after the last key before the server is queried

const fits = (text, words) => words.every((w) => text.toLowerCase().includes(w));

// local searches without the server: [{kind, text, note, open()}].
function local(words) {
  const all = [
    { kind: "Action", text: "Start a run", open: () => go("/start") },
    ...actionsHere().map(({ key, label, fn }) => ({ kind: "Action", text: label, note: key, open: fn })),
    ...places.filter(([path]) => path !== "/tokens" || can("admin")).map(([path, label, , key]) =>
      ({ kind: "Page", text: label, note: "g " + key, open: () => go(path) })),
  ];
  return all.filter((one) => fits(one.text, words));
}

function item(text) {
  const { page, params } = route.value;
  if (!text || !["run", "errors", "item"].includes(page)) return [];
  return [{ kind: "Item", text, note: "of this run", open: () => go(itemPath(params.run, text)) }];
}

async function remote(text, words, signal) {
  const ask = (path) => api.get(path, { signal }).catch((err) => {
    if (err.name === "AbortError") throw err;
    return {};
  });
  const [runs, plans, endpoints] = await Promise.all([
    ask("/runs" + query({ q: text, limit: MOST })), ask("/plans"), ask("/endpoints"),
  ]);
  const some = (list, name) => (list ?? []).filter((one) => fits(name(one), words)).slice(0, MOST);
  return [
    ...(runs.runs ?? []).map((r) => ({ kind: "Run", text: r.name || r.plan, note: `${r.state} · ${shortId(r.id)}`,
      open: () => go("/runs/" + r.id) })),
    ...some(plans.plans, (p) => p.name).map((p) => ({ kind: "Plan", text: p.name,
      open: () => go("/plans" + query({ name: p.name })) })),
    ...some(endpoints.endpoints, (e) => e.name).map((e) => ({ kind: "Endpoint", text: e.name,
      open: () => go("/endpoint" + query({ name: e.name })) })),
  ];
}

export function Search() {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
  const id = useId();
  const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  useEffect(() => {
    const abort = new AbortController();
    setFound((was) => (text.trim() ? was : []));
    if (!text.trim()) return undefined;
    const timer = setTimeout(() => remote(text.trim(), words, abort.signal).then(setFound, () => {}), WAIT);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);
  const all = [...local(words), ...item(text.trim()), ...(words.length > 0 ? found : [])];
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
    <input type="search" autofocus value=${text} placeholder="Runs, keys, endpoints, plans, pages, actions" aria-label="Search for"
      role="combobox" aria-expanded="true" aria-controls=${id} aria-activedescendant=${all.length > 0 ? `${id}-${chosen}` : undefined}
      autocomplete="off" spellcheck="false" onKeyDown=${keys} data-test="search-text"
      onInput=${(e) => { setText(e.currentTarget.value); setAt(0); }}/>
    <ul class="found" id=${id} role="listbox" aria-label="What was found">${all.map(row)}</ul>
    <p class="muted" role="status">${all.length === 0 ? "Nothing fits." : ""}</p><//>`;
}
