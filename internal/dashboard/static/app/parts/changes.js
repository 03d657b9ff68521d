// The differences between two documents, value by value.

import { num } from "../format.js";

/** changes lists different values, nested names as a.b.c: [{name, was, is}], undefined if missing. */
export function changes(before, after) {
  const was = flat(before);
  const is = flat(after);
  const names = [...new Set([...was.keys(), ...is.keys()])].sort();
  return names
    .map((name) => ({ name, was: was.get(name), is: is.get(name) }))
    .filter((c) => c.was !== c.is);
}

// flat maps paths to the scalar values of a document. Lists count as values, because indexes say little.
function flat(doc, path = "", into = new Map()) {
  for (const [name, value] of Object.entries(doc ?? {})) {
    const at = path ? `${path}.${name}` : name;
    if (value && typeof value === "object" && !Array.isArray(value) && at.split(".").length < 6) flat(value, at, into);
    else if (!nothing(value)) into.set(at, written(value));
  }
  return into;
}

const nothing = (v) => v === null || v === undefined || v === "" || (Array.isArray(v) && v.length === 0);

function written(value) {
  switch (typeof value) {
    case "boolean":
      return value ? "yes" : "no";
    case "number":
      return num(value);
    case "string":
      return value;
    default:
      return Array.isArray(value) && value.every((v) => typeof v !== "object") ? value.join(", ") : JSON.stringify(value);
  }
}
