// JSON as written: numbers keep their digits, members their order, and any depth can be read without recursion.
// JSON.parse rounds 12345678901234567890 and reorders members that look like numbers, which would mislead an operator
// comparing results.

const space = /[ \t\n\r]*/y;
const number = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const literal = /true|false|null/y;

/**
 * parse parses JSON into nodes: {kind: "object", members: [[name, node]…]}, {kind: "array", items: [node…]}, {kind:
 * "string", value}, {kind: "number", value: its text} and {kind: "literal", value: its text}. Like JSON.parse it
 * throws a SyntaxError.
 */
export function parse(text) {
  const reader = new Reader(text);
  const root = { items: [] };
  const open = [{ node: root, name: null }];
  do {
    step(reader, open);
  } while (open.length > 1);
  reader.space();
  if (reader.at < text.length) reader.fail();
  return root.items[0];
}

// step reads a value, or the end of a container, into the innermost open container.
function step(reader, open) {
  const into = open[open.length - 1].node;
  if (into.kind && reader.ends(into)) {
    open.pop();
    return;
  }
  let name = null;
  if (into.kind === "object") {
    name = reader.string();
    reader.expect(":");
  }
  const value = reader.value();
  if (into.kind === "object") into.members.push([name, value]);
  else into.items.push(value);
  if (value.kind === "object" || value.kind === "array") open.push({ node: value });
}

// escaped reports whether an odd number of backslashes precedes a quote.
function escaped(text, quote) {
  let first = quote;
  while (text[first - 1] === "\\") first--;
  return (quote - first) % 2 === 1;
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  fail() {
    throw new SyntaxError(`JSON is broken at character ${this.at + 1}`);
  }

  space() {
    space.lastIndex = this.at;
    space.exec(this.text);
    this.at = space.lastIndex;
  }

  match(pattern) {
    this.space();
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (!found) this.fail();
    this.at = pattern.lastIndex;
    return found[0];
  }

  peek() {
    this.space();
    return this.text[this.at];
  }

  // string searches the closing quote with indexOf: a pattern would walk a megabyte character by character.
  string() {
    if (this.peek() !== '"') this.fail();
    let end = this.at;
    do {
      end = this.text.indexOf('"', end + 1);
      if (end < 0) this.fail();
    } while (escaped(this.text, end));
    const value = JSON.parse(this.text.slice(this.at, end + 1));
    this.at = end + 1;
    return value;
  }

  expect(character) {
    if (this.peek() !== character) this.fail();
    this.at++;
  }

  // ends consumes the end of a container, or the comma before its next value.
  ends(container) {
    const close = container.kind === "object" ? "}" : "]";
    if (this.peek() === close) {
      this.at++;
      return true;
    }
    if ((container.members ?? container.items).length > 0) this.expect(",");
    return false;
  }

  value() {
    switch (this.peek()) {
      case "{":
        this.at++;
        return { kind: "object", members: [] };
      case "[":
        this.at++;
        return { kind: "array", items: [] };
      case '"':
        return { kind: "string", value: this.string() };
      case "t":
      case "f":
      case "n":
        return { kind: "literal", value: this.match(literal) };
      default:
        return { kind: "number", value: this.match(number) };
    }
  }
}

export function member(node, name) {
  return node?.kind === "object" ? node.members.find(([n]) => n === name)?.[1] : undefined;
}

/** at follows names and indexes from a node; undefined if missing. */
export function at(node, ...path) {
  for (const part of path) node = typeof part === "number" ? node?.items?.[part] : member(node, part);
  return node;
}

export const size = (node) => (node.members ?? node.items ?? []).length;

// Indentation stops at this depth: a thousand levels would be a megabyte of spaces.
const deepest = 48;

/** write formats a node, indented by two, without recursion. */
export function write(node) {
  const out = [];
  const work = [{ node, indent: "", name: null, comma: false }];
  while (work.length > 0) {
    const job = work.pop();
    if (job.text !== undefined) {
      out.push(job.text);
      continue;
    }
    const head = job.indent + (job.name === null ? "" : JSON.stringify(job.name) + ": ");
    const tail = (job.comma ? "," : "") + "\n";
    const children = job.node.members ?? job.node.items?.map((item) => [null, item]);
    if (!children) {
      out.push(head + (job.node.kind === "string" ? JSON.stringify(job.node.value) : job.node.value) + tail);
      continue;
    }
    const [opening, closing] = job.node.kind === "object" ? "{}" : "[]";
    if (children.length === 0) {
      out.push(head + opening + closing + tail);
      continue;
    }
    out.push(head + opening + "\n");
    work.push({ text: job.indent + closing + tail });
    for (let i = children.length - 1; i >= 0; i--) {
      const [name, child] = children[i];
      work.push({ node: child, indent: job.indent.length < deepest ? job.indent + "  " : job.indent, name, comma: i < children.length - 1 });
    }
  }
  return out.join("").trimEnd();
}
