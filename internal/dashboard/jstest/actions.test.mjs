import assert from "node:assert/strict";
import test from "node:test";
import { register } from "node:module";

// Components are read as what they are made of.
register("data:text/javascript," + encodeURIComponent(`
  const none = (all) => all.map((n) => "export const " + n + " = () => {};").join("");
  const source = (name) => {
    if (/\\/html\\.js$/.test(name)) return "export const html = (text, ...values) => ({ text, values });" + none(["useEffect", "useState"]) + "export const signal = (value) => ({ value });";
    if (/\\/ui\\.js$/.test(name)) return none(["Badge", "Button", "ButtonLink", "Icon", "Menu", "Progress", "StateBadge", "Text", "Time", "confirm", "now", "toast", "useLoad"]);
    if (/\\/api\\.js$/.test(name)) return none(["query", "segment"]) + "export const api = {}; export const BASE = '';";
    return null;
  };
  export async function resolve(name, context, next) {
    const text = source(name);
    return text === null ? next(name, context) : { url: "data:text/javascript," + encodeURIComponent(text), shortCircuit: true };
  }`));
const { Actions } = await import("../static/app/run/head.js");
const { actionsOf } = await import("../static/app/runs/actions.js");

test("a run is resumed that is paused, or was cancelled with items left", () => {
  for (const [run, may] of [
    [{ state: "paused", hold: { kind: "operator" } }, true],
    [{ state: "cancelled" }, true],
    [{ state: "cancelled", done: 9 }, false],
    [{ state: "paused", hold: { kind: "canary" } }, false],
    [{ state: "running" }, false],
    [{ state: "completed", done: 9 }, false],
  ].map(([run, may]) => [{ id: "1", plan: "p", items: 10, done: 1, failed: 1, ...run }, may])) {
    const page = JSON.stringify(Actions({ run })).includes('test=\\"resume\\"');
    const list = actionsOf(run).some((item) => item?.test === "resume");
    assert.deepEqual([page, list], [may, may], JSON.stringify(run));
  }
});
