// The reference of the public API, from the server's own OpenAPI document.

import { html, useEffect, useMemo } from "../html.js";
import { Badge, Card, Empty, ErrorBox, Page, Search, Skeleton, useLoad } from "../ui.js";
import { setQuery } from "../router.js";
import { inert, plural } from "../format.js";
import { Operation } from "../parts/operation.js";
import { onEnter } from "../parts/enter.js";

const methods = ["get", "post", "put", "patch", "delete"];
const tones = { get: "info", post: "ok", put: "warn", patch: "warn", delete: "bad" };

/** Reference is the page /api; q searches, op is the open operation. */
export default function Reference({ query }) {
  const { data: doc, error, reload } = useLoad("/openapi.json");
  const groups = useMemo(() => (doc ? grouped(doc) : []), [doc]);
  const shown = useMemo(() => filtered(groups, query.q), [groups, query.q]);
  const count = groups.reduce((n, g) => n + g.operations.length, 0);
  useEffect(() => {
    if (doc && query.op) document.getElementById(`op-${query.op}`)?.scrollIntoView({ block: "start" });
  }, [doc]);
  return html`<${Page} title="API" test="api-page" subtitle=${doc && html`${plural(count, "operation")} below <code>/api/v1</code>, OpenAPI ${inert(doc.openapi)}, version ${inert(doc.info?.version)}`}
    actions=${html`<a class="btn" href="/api/v1/openapi.json" download="tranche-openapi.json">openapi.json</a>`}>
    <${ErrorBox} error=${error} retry=${reload} />
    ${!doc && !error && html`<${Card}><${Skeleton} lines=${10} /><//>`}
    ${doc &&
    html`<div class="api-columns">
      <nav class="api-nav" aria-label="Groups of operations">
        <${Search} value=${query.q} label="Search the operations" placeholder="Path, word…" onChange=${(q) => setQuery({ q })} />
        <ul>${shown.map((g) => html`<li key=${g.id}><a href=${`#group-${g.id}`} onClick=${(e) => jump(e, `group-${g.id}`)}>${capital(g.name)} <span class="count">${g.operations.length}</span></a></li>`)}</ul>
      </nav>
      <div class="api-main">
        ${doc.info?.description && !query.q && html`<${Card}><p class="op-description">${inert(doc.info.description.replaceAll("\n", " "))}</p><//>`}
        ${shown.length === 0 && html`<${Card}><${Empty} icon="search" title="No operation fits" /><//>`}
        ${shown.map((g) => html`<section key=${g.id} aria-labelledby=${`group-${g.id}`}>
          <h2 class="api-group" id=${`group-${g.id}`}>${capital(g.name)}</h2>
          ${g.description && html`<p class="muted api-about">${inert(g.description)}</p>`}
          <div class="ops" data-rows>${g.operations.map((op) => html`<${Line} key=${op.id} doc=${doc} op=${op} open=${query.op === op.id} />`)}</div>
        </section>`)}
      </div>
    </div>`}
  <//>`;
}

function jump(e, id) {
  e.preventDefault();
  document.getElementById(id).scrollIntoView({ block: "start" });
}

function Line({ doc, op, open }) {
  const role = op.spec["x-role"] ?? op.spec.security?.[0]?.role?.[0];
  const toggle = () => setQuery({ op: open ? "" : op.id });
  return html`<div class=${"op" + (open ? " open" : "")} id=${`op-${op.id}`} data-test="operation" data-row=${op.id} tabindex="-1" onKeyDown=${onEnter(toggle)}>
    <button type="button" class="op-line" aria-expanded=${String(open)} onClick=${toggle}>
      <span class=${`method tone-${tones[op.method]}`}>${op.method}</span>
      <code class="op-path">${pathText(op.path)}</code>
      <span class="op-summary">${inert(op.spec.summary ?? "", 200)}</span>
      ${role && html`<${Badge}>${inert(role, 20)}<//>`}
    </button>
    ${open && html`<${Operation} doc=${doc} op=${op} />`}
  </div>`;
}

// A path may break before each of its parts.
const pathText = (path) => path.split("/").map((part, i) => html`${i > 0 && html`<wbr />/`}${part.startsWith("{") ? html`<em>${inert(part)}</em>` : inert(part)}`);

const words = { runs: "Runs", plans: "Plans", endpoints: "Endpoints", "dead-letters": "Dead letters", quarantine: "Quarantine",
  audit: "Audit", nodes: "Nodes", health: "Health", tokens: "Tokens", session: "Session", items: "Items", events: "Events" };

// grouped groups operations by their first tag, or by the first part of their path.
function grouped(doc) {
  const groups = new Map();
  const named = (id, name, description) => {
    if (!groups.has(id)) groups.set(id, { id, name, description, operations: [] });
    return groups.get(id);
  };
  for (const tag of doc.tags ?? []) named(slug(tag.name), tag.name, tag.description);
  for (const [path, item] of Object.entries(doc.paths ?? {})) {
    const first = path.split("/")[1] ?? "";
    for (const method of methods.filter((m) => item[m])) {
      const spec = { ...item[method], parameters: [...(item.parameters ?? []), ...(item[method].parameters ?? [])] };
      const tag = spec.tags?.[0];
      const group = tag ? named(slug(tag), tag) : words[first] ? named(first, words[first]) : named("system", "System");
      group.operations.push({ id: spec.operationId ?? `${method}-${slug(path)}`, method, path, spec });
    }
  }
  return [...groups.values()].filter((g) => g.operations.length > 0);
}

const capital = (name) => inert(name[0].toUpperCase() + name.slice(1), 60);
const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-");

function filtered(groups, q) {
  if (!q) return groups;
  const all = q.toLowerCase().split(/\s+/);
  const fits = (op) => {
    const text = [op.method, op.path, op.id, op.spec.summary, op.spec.description].join(" ").toLowerCase();
    return all.every((word) => text.includes(word));
  };
  return groups.map((g) => ({ ...g, operations: g.operations.filter(fits) })).filter((g) => g.operations.length > 0);
}
