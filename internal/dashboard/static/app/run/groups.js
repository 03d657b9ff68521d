// The items of a run by the value of a payload field: rows in a table, and bands in the map.
import { html, useEffect, useState } from "../html.js";
import { api, query, segment } from "../api.js";
import { Card, ErrorBox, Select, Skeleton, Table, Text, useLoad } from "../ui.js";
import { inert, num, percent } from "../format.js";
import { BLOCK } from "../heatmap/store.js";
import { ended } from "./head.js";

const EVERY = 5;   // seconds between counts
const PIECE = 128; // blocks per request, the server's maximum

/** rowsOf is the rows of the table: {at, name, value, items, …}; the other values, if any, are last. */
export function rowsOf({ groups, others }) {
  const rows = groups.map((g, at) => ({ ...g, at, name: g.value ?? "(none)" }));
  if (others) rows.push({ ...others, at: rows.length, name: `${num(others.values)} others` });
  return rows;
}

/**
 * useGroups is the page's state of groups: {fields, found, error, reload, map}; map is for the HeatMap, null without
 * groups.
 */
export function useGroups(run, by, read) {
  const path = `/runs/${segment(run.id)}/groups`;
  const { data: list } = useLoad(read && path, [run.items > 0]);
  const { data, error, reload } = useLoad(by && path + query({ by }), [run.items, run.state], { every: ended(run) ? 0 : EVERY });
  const { data: of, error: unmapped } = useLoad(by && run.items > 0 ? (control) => readMap(path, by, control) : "", [by, run.id, run.items]);
  const found = data?.by === by ? data : null;
  const [map, setMap] = useState(null);
  const names = found && JSON.stringify(rowsOf(found).map((r) => inert(r.name, 60)));
  useEffect(() => {
    setMap(by && names && of?.by === by ? { of: of.bytes, names: JSON.parse(names) } : null);
  }, [by, names, of]);
  return { fields: list?.fields ?? [], found, error: error ?? unmapped, reload, map: by ? map : null };
}

async function readMap(path, by, { signal }) {
  let bytes = new Uint8Array(0);
  for (let from = 0, blocks = 1; from < blocks; from += PIECE) {
    const answer = await api.raw(`${path}/map${query({ by, from: String(from), blocks: PIECE })}`, { signal });
    const items = Number(answer.headers.get("Tranche-Items"));
    if (from === 0) { // an open run may have more by the next piece
      blocks = Number(answer.headers.get("Tranche-Blocks"));
      bytes = new Uint8Array(items).fill(255);
    }
    bytes.set(new Uint8Array(await answer.arrayBuffer()).subarray(0, bytes.length - from * BLOCK), from * BLOCK);
  }
  return { by, bytes };
}

export function Groups({ groups, by, onBy, onShow }) {
  const { fields, found, error, reload } = groups;
  if (fields.length === 0 && !by) return null;
  const options = [["", "nothing"], ...[...new Set(by ? [...fields, by] : fields)].map((f) => [f, f])];
  return html`<${Card} title="Groups" flush test="groups" actions=${html`<label class="groups-by">by <${Select} value=${by}
      onChange=${onBy} options=${options} label="Group by a field of the payloads" test="groups-by" /></label>`}>
    <${ErrorBox} error=${error} retry=${reload} />
    ${by && !found && !error && html`<${Skeleton} lines=${3} />`}
    ${by && found && html`<${Table} caption=${`Items by ${inert(by, 60)}`} rows=${rowsOf(found)} rowKey=${(r) => r.at}
        columns=${columns(by, onShow)} test="groups-table" />`}
    ${by && found && html`<p class="muted groups-note">While items are grouped, a drag moves the map: a range that is seen is
      no range of the run.</p>`}
  <//>`;
}

function columns(by, onShow) {
  const number = (key, title) => ({ key, title, align: "right", render: (r) => html`<span
      class=${"num" + (key === "failed" && r.failed > 0 ? " bad-text" : "")}>${num(r[key])}</span>` });
  return [
    { key: "value", title: inert(by, 40), render: (r) => html`<button type="button" class="link-btn" title="Show it on the map"
        data-test=${"group-" + r.at} onClick=${() => onShow(r.at)}>${r.value === null || r.values ? html`<span
        class="muted">${r.name}</span>` : html`<${Text} max=${60}>${r.name}<//>`}</button>` },
    number("items", "Items"), number("done", "Done"), number("failed", "Failed"), number("in_progress", "In progress"),
    { key: "percent", title: "Done of all", align: "right", render: (r) => html`<span class="num">${percent(r.done / Math.max(1, r.items))}</span>` },
  ];
}
