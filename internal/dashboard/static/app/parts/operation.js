// An operation of the API: input, output, and how to call it.

import { ROOT, html, useState } from "../html.js";
import { Badge, Copy } from "../ui.js";
import { inert } from "../format.js";
import { session } from "../session.js";
import { bounds, deref, example, members, nameOf, typeText } from "./schema.js";


/** Operation shows an operation's details. op is {method, path, id, spec}. */
export function Operation({ doc, op }) {
  const { spec } = op;
  const parameters = (spec.parameters ?? []).map((p) => deref(doc, p));
  const body = spec.requestBody && deref(doc, spec.requestBody);
  return html`<div class="op-body">
    ${spec.description && html`<p class="op-description">${paragraphs(spec.description)}</p>`}
    ${["path", "query", "header"].map((place) => {
      const found = parameters.filter((p) => p.in === place);
      return found.length > 0 && html`<${Parameters} key=${place} doc=${doc} place=${place} parameters=${found} />`;
    })}
    ${body && html`<h3>Body${body.required ? "" : html` <span class="muted">optional</span>`}</h3><${Contents} doc=${doc} content=${body.content} />`}
    <h3>Answers</h3>
    ${Object.entries(spec.responses ?? {}).map(([status, r]) => html`<${Answer} key=${status} doc=${doc} status=${status} response=${deref(doc, r)} />`)}
    <h3>Try it</h3>
    <${Curl} doc=${doc} op=${op} body=${body} parameters=${parameters} />
  </div>`;
}

const paragraphs = (text) => inert(text.replaceAll("\n", " "));

const places = { path: "In the path", query: "Query", header: "Headers" };

function Parameters({ doc, place, parameters }) {
  return html`<h3>${places[place]}</h3><dl class="schema">${parameters.map(
    (p) => html`<${Line} key=${p.name} doc=${doc} name=${p.name} schema=${p.schema} required=${p.required} description=${p.description} />`,
  )}</dl>`;
}

function Contents({ doc, content }) {
  return Object.entries(content ?? {}).map(
    ([type, { schema }]) => html`<div class="content" key=${type}><p class="content-type"><code>${inert(type)}</code>${nameOf(schema) && html` <span class="muted">${nameOf(schema)}</span>`}</p>
      <${Members} doc=${doc} schema=${schema} /></div>`,
  );
}

function Answer({ doc, status, response }) {
  const tone = status.startsWith("2") ? "ok" : status === "default" || /^[45]/.test(status) ? "bad" : "plain";
  const content = Object.keys(response.content ?? {});
  return html`<details class="answer"><summary><${Badge} tone=${tone}>${status === "default" ? "error" : status}<//> ${inert(response.description ?? "")} <span class="muted">${content.join(", ")}</span></summary>
    <${Contents} doc=${doc} content=${response.content} /></details>`;
}

// Members are rendered when opened, because schemas may refer to themselves.
function Members({ doc, schema }) {
  const all = members(doc, schema);
  if (all.length === 0) return html`<p class="muted">${typeText(doc, schema)}</p>`;
  return html`<dl class="schema">${all.map(([name, of, required]) => html`<${Line} key=${name} doc=${doc} name=${name} schema=${of} required=${required} />`)}</dl>`;
}

function Line({ doc, name, schema, required, description }) {
  const resolved = deref(doc, schema);
  const said = description ?? schema?.description ?? resolved.description;
  const limits = bounds(schema?.$ref ? resolved : schema);
  const inner = members(doc, schema).length > 0;
  return html`<div class="schema-line">
    <dt><code>${inert(name)}</code>${required && html`<span class="required" title="required">*</span>`}<span class="muted">${typeText(doc, schema)}</span></dt>
    <dd>${said && html`<span>${paragraphs(said)}</span>`}${limits.length > 0 && html`<span class="limits">${inert(limits.join("; "), 400)}</span>`}
      ${inner && html`<${Folded} doc=${doc} schema=${schema} />`}</dd>
  </div>`;
}

function Folded({ doc, schema }) {
  const [open, setOpen] = useState(false);
  return html`<button type="button" class="tool" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${open ? "Hide members" : "Members"}</button>${open && html`<${Members} doc=${doc} schema=${schema} />`}`;
}

/** curl is a command that calls an operation. */
export function curl(doc, op, body, parameters, origin, auth) {
  const path = op.path.replace(/\{(\w+)\}/g, (_, name) => {
    const p = parameters.find((q) => q.name === name);
    const value = p?.schema?.examples?.[0] ?? p?.example;
    return value !== undefined ? encodeURIComponent(value) : name.toUpperCase();
  });
  const required = parameters.filter((p) => p.in === "query" && p.required).map((p) => `${p.name}=${encodeURIComponent(example(doc, p.schema))}`);
  const lines = [`curl -sS${op.method === "get" ? "" : ` -X ${op.method.toUpperCase()}`} '${origin}/api/v1${path}${required.length ? "?" + required.join("&") : ""}'`];
  if (auth) lines.push(`-H "Authorization: Bearer $TRANCHE_TOKEN"`);
  if (op.method !== "get" && parameters.some((p) => p.name === "Idempotency-Key")) lines.push(`-H "Idempotency-Key: $(uuidgen)"`);
  const types = Object.keys(body?.content ?? {});
  if (types.includes("application/json")) {
    lines.push(`-H 'Content-Type: application/json'`, `-d '${JSON.stringify(example(doc, body.content["application/json"].schema)).replaceAll("'", "'\\''")}'`);
  } else if (types.length > 0) {
    lines.push(`-H 'Content-Type: ${types[0]}'`, `--data-binary @FILE`);
  }
  return lines.join(" \\\n  ");
}

function Curl({ doc, op, body, parameters }) {
  const text = curl(doc, op, body, parameters, location.origin + ROOT, session.value.auth === "on");
  return html`<div class="curl"><pre tabindex="0" aria-label="how to call it with curl">${text}</pre><${Copy} text=${text} label="Copy the command" /></div>`;
}
