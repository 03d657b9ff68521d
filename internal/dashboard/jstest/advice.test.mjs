import assert from "node:assert/strict";
import test from "node:test";
import { buttonsOf, causesOf, telling } from "../static/app/parts/advice.js";

const command = (text) => ({ do: text, command: "tranche " + text });

test("equal causes are one, with the advice of each once", () => {
  const [resume, errors, show] = ["run resume 1a", "run errors 1a", "endpoints show mail"].map(command);
  const group = (items, why, since, advice) => ({ reason: "breaker_open", endpoint: "mail", items, counted: items, why, since, advice });
  const { causes, advice } = causesOf({ advice: [errors], groups: [
    group(10, "most failed, and more", "2026-01-02T00:00:02Z", [show]), { ...group(5, "most failed", "2026-01-02T00:00:01Z", [show]), step: "send" },
    { reason: "run_held", who: "bob", items: 3, counted: 0, why: "paused", advice: [errors, resume] },
  ] });
  assert.deepEqual(causes.map((c) => [c.items, c.why, c.since, c.steps, c.advice]),
    [[15, "most failed", "2026-01-02T00:00:01Z", ["send"], [show]], [3, "paused", undefined, [], [errors, resume]]]);
  assert.deepEqual(advice, []);
  assert.deepEqual(causesOf({}), { causes: [], advice: [] });
});

test("a remedy is a button, once, and what two commands differ in is told", () => {
  const all = ["run approve 1a --step send --dry-run", "run approve 1a --step send", "endpoints set 'mail' --breaker closed", "node list"].map(command);
  assert.deepEqual(buttonsOf(all), [{ label: "Review and approve", to: "/runs/1a", act: "approve" },
    { label: "Endpoint mail", to: "/endpoint?name=mail", act: "" }]);
  assert.deepEqual(telling("a b --dry-run", ["a b --dry-run", "a b"]), [["a", false], ["b", false], ["--dry-run", true]]);
});
