// Schemas of an OpenAPI document: references, descriptions and examples.

import { num } from "../format.js";

export function deref(doc, schema) {
  let found = schema;
  for (let i = 0; found?.$ref && i < 20; i++) {
    found = found.$ref.replace(/^#\//, "").split("/").reduce((at, part) => at?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], doc);
  }
  return found ?? {};
}

/** nameOf is the name of the schema that a reference points to, or "". */
export const nameOf = (schema) => schema?.$ref?.split("/").pop() ?? "";

/** typeText describes a type: string, integer or text, array of StepView. */
export function typeText(doc, schema) {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema);
  const types = [].concat(schema.type ?? []).filter((t) => t !== "null");
  const either = schema.oneOf ?? schema.anyOf;
  if (either) return [...new Set(either.map((s) => typeText(doc, s)))].join(" or ");
  if (types.includes("array")) return `array of ${typeText(doc, schema.items) || "values"}`;
  if (types.includes("object") && typeof schema.additionalProperties === "object") return `map to ${typeText(doc, schema.additionalProperties)}`;
  const form = { "date-time": "time", binary: "bytes", byte: "base64", uuid: "uuid" }[schema.format];
  return form ?? (types.join(" or ") || "any value");
}

export function bounds(schema) {
  const s = schema ?? {};
  const all = [];
  if (s.enum) all.push(s.enum.map((v) => JSON.stringify(v)).join(", "));
  if (s.default !== undefined) all.push(`default ${JSON.stringify(s.default)}`);
  if (s.minimum !== undefined && s.maximum !== undefined) all.push(`${num(s.minimum)} to ${num(s.maximum)}`);
  else if (s.minimum !== undefined) all.push(`${num(s.minimum)} or more`);
  else if (s.maximum !== undefined) all.push(`${num(s.maximum)} at most`);
  if (s.maxLength !== undefined) all.push(`${num(s.maxLength)} characters at most`);
  if (s.maxItems !== undefined) all.push(`${num(s.maxItems)} at most`);
  if (s.pattern) all.push(`like ${s.pattern}`);
  return all;
}

/** members are the properties of an object, or of the objects in an array or a map: [name, schema, required]. */
export function members(doc, schema) {
  const s = deref(doc, schema);
  const found = [];
  for (const part of s.allOf ?? []) found.push(...members(doc, part));
  for (const [name, of] of Object.entries(s.properties ?? {})) found.push([name, of, (s.required ?? []).includes(name)]);
  if (found.length > 0) return found;
  if (s.items) return members(doc, s.items);
  if (typeof s.additionalProperties === "object") return members(doc, s.additionalProperties);
  return [];
}

/** example is a valid value of a schema; for an object it has the members that are required or have an example. */
export function example(doc, schema, depth = 0) {
  const s = deref(doc, schema);
  if (s.examples?.length) return s.examples[0];
  if (s.example !== undefined) return s.example;
  if (s.default !== undefined) return s.default;
  if (s.enum) return s.enum[0];
  const either = s.oneOf ?? s.anyOf;
  if (either) return example(doc, either[0], depth);
  switch ([].concat(s.type ?? [])[0]) {
    case "object": {
      if (depth > 2) return {};
      const all = members(doc, s);
      const wanted = all.filter(([, of, required]) => required || deref(doc, of).examples?.length);
      return Object.fromEntries((wanted.length ? wanted : all.slice(0, 2)).map(([name, of]) => [name, example(doc, of, depth + 1)]));
    }
    case "array":
      return depth > 2 ? [] : [example(doc, s.items, depth + 1)];
    case "integer":
    case "number":
      return s.minimum > 0 ? s.minimum : 1;
    case "boolean":
      return true;
    default:
      return s.format === "date-time" ? "2026-01-31T15:04:05Z" : "…";
  }
}
