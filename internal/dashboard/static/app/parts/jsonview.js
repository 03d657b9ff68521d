// A JSON tree that renders only open parts, so that a megabyte, a thousand levels or a hundred thousand entries cost
// no more than what is visible.

import { html, useState, useMemo } from "../html.js";
import { inert, num } from "../format.js";
import { Copy } from "../ui.js";
import { parse, size, write } from "./jsontext.js";

const openDepth = 2; // levels open at first
const openSize = 50; // unless they have more values
const page = 100; // values of a container per page
const shownText = 400; // characters of a string before "more"
const moreText = 20_000; // characters per "more"

/** JsonView shows JSON, and other text as text. node is the parsed text, if available. */
export function JsonView({ text, node, label = "JSON" }) {
  const [all, setAll] = useState(null); // null: initial; else whether everything is open
  const [plain, setPlain] = useState(false);
  const tree = useMemo(() => node ?? tryParse(text), [text, node]);
  if (!tree) return html`<${TextView} text=${text ?? ""} label=${label} />`;
  const foldable = tree.kind === "object" || tree.kind === "array";
  return html`<div class="json" data-test="json">
    ${foldable &&
    html`<div class="json-tools" role="toolbar" aria-label=${label}>
      <button type="button" class="tool" aria-pressed=${plain} onClick=${() => setPlain(!plain)}>Raw</button>
      ${!plain &&
      html`<button type="button" class="tool" onClick=${() => setAll({ open: true })}>Expand</button>
        <button type="button" class="tool" onClick=${() => setAll({ open: false })}>Collapse</button>`}
      <${Copy} text=${() => write(tree)} label=${`Copy ${label}`} />
    </div>`}
    ${plain
      ? html`<${TextView} text=${write(tree)} label=${label} />`
      : html`<div class="json-tree" role="group" aria-label=${label} tabindex="0">
          <${Value} node=${tree} depth=${0} all=${all} />
        </div>`}
  </div>`;
}

function tryParse(text) {
  try {
    return parse(text);
  } catch {
    return null;
  }
}

function Value({ node, name, depth, all }) {
  if (node.kind === "object" || node.kind === "array") {
    return html`<${Container} node=${node} name=${name} depth=${depth} all=${all} />`;
  }
  return html`<div class="json-row">${label(name)}<${Scalar} node=${node} /></div>`;
}

// "Open all" stops here, before it would render tens of thousands of rows.
const tooDeep = 12;

function Container({ node, name, depth, all }) {
  const count = size(node);
  const first = all ? all.open && depth < tooDeep : depth < openDepth && count <= openSize;
  const [set, setSet] = useState({ open: first, by: all });
  const open = set.by === all ? set.open : first;
  const [shown, setShown] = useState(page);
  const [opening, closing] = node.kind === "object" ? "{}" : "[]";
  if (count === 0) return html`<div class="json-row">${label(name)}<span class="json-mark">${opening}${closing}</span></div>`;
  const entries = node.members ?? node.items;
  if (isShort(node)) return html`<${Inline} node=${node} name=${name} />`;
  return html`<div class="json-node">
    <button
      type="button"
      class="json-toggle"
      aria-expanded=${open}
      onClick=${() => setSet({ open: !open, by: all })}
    >
      <span class="json-caret" aria-hidden="true"></span>${label(name)}<span class="json-mark">${opening}</span>
      ${!open && html`<span class="json-count">${counted(count, node.kind)}</span><span class="json-mark">${closing}</span>`}
    </button>
    ${open &&
    html`<div class="json-children">
        ${entries.slice(0, shown).map((entry, i) =>
          node.kind === "object"
            ? html`<${Value} key=${i} name=${entry[0]} node=${entry[1]} depth=${depth + 1} all=${all} />`
            : html`<${Value} key=${i} node=${entry} depth=${depth + 1} all=${all} />`,
        )}
        ${count > shown &&
        html`<button type="button" class="tool" onClick=${() => setShown(shown + page * 5)}>
          ${num(count - shown)} more
        </button>`}
      </div>
      <div class="json-row json-mark">${closing}</div>`}
  </div>`;
}

const inlineItems = 40;
const inlineText = 16;

// isShort reports whether a list of short values fits one line.
const isShort = (node) =>
  node.kind === "array" && node.items.length <= inlineItems &&
  node.items.every((i) => i.value !== undefined && i.value.length <= inlineText);

function Inline({ node, name }) {
  return html`<div class="json-row">${label(name)}<span class="json-mark">[</span>${node.items.map(
    (item, i) => html`${i > 0 && html`<span class="json-mark">, </span>`}<${Scalar} node=${item} />`,
  )}<span class="json-mark">]</span></div>`;
}

const counted = (n, kind) => `${num(n)} ${kind === "object" ? "member" : "value"}${n === 1 ? "" : "s"}`;

function label(name) {
  if (name === undefined) return null;
  const text = name.length > shownText ? name.slice(0, shownText) + "…" : name;
  return html`<bdi class="json-name">${inert(text)}</bdi><span class="json-mark">: </span>`;
}

function Scalar({ node }) {
  if (node.kind !== "string") {
    return html`<span class=${node.kind === "number" ? "json-number" : "json-literal"}>${node.value}</span>`;
  }
  return html`<span class="json-string">"<${Long} text=${node.value} />"</span>`;
}

/** Long shows the beginning of a long text, escaped. */
export function Long({ text, most = shownText }) {
  const [shown, setShown] = useState(most);
  const rest = text.length - shown;
  return html`<bdi>${inert(rest > 0 ? text.slice(0, shown) : text)}</bdi>${rest > 0 &&
    html`… <button type="button" class="tool" onClick=${() => setShown(shown + moreText)}>
        ${num(rest)} more characters
      </button>`}`;
}

// lines is an escaped text that keeps line breaks and tabs.
const lines = (text) => text.split("\n").map((line) => line.replace(/\r$/, "").split("\t").map(inert1).join("\t")).join("\n");
const inert1 = (part) => inert(part);

/** TextView shows escaped text with its lines in a scrolling box. */
export function TextView({ text, label = "text" }) {
  const [shown, setShown] = useState(moreText);
  const rest = text.length - shown;
  return html`<div class="textview">
    <pre tabindex="0" aria-label=${label}><bdi>${lines(rest > 0 ? text.slice(0, shown) : text)}</bdi></pre>
    ${rest > 0 &&
    html`<button type="button" class="tool" onClick=${() => setShown(shown + moreText * 10)}>
      ${num(rest)} more characters
    </button>`}
  </div>`;
}
