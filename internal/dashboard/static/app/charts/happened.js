// The history of a run in words.
import { inert } from "../format.js";

const actions = {
  start: "Started", open: "Opened for items", add: "Items added", seal: "Closed to new items", rerun: "Rerun",
  reset: "Results of a step discarded", set: "Settings changed", pause: "Paused", resume: "Resumed", approve: "Approved",
  cancel: "Cancelled",
};
const events = { completed: "Completed", overdue: "Overdue: not sealed before its deadline", rewound: "The database lost recent commits" };
const breakers = { open: "Breaker opened", closed: "Breaker closed" };

export function headline(e) {
  switch (e.kind) {
    case "note": return "Note";
    case "action": return actions[e.what] ?? inert(e.what.replaceAll("_", " "), 60);
    case "event": return [events[e.what] ?? inert(e.what, 60), inert(e.text, 60)].filter(Boolean).join(", ");
    case "breaker": return `${breakers[e.what] ?? "Breaker " + inert(e.what, 40)} at ${inert(e.who, 60)}`;
    case "outage": return e.what === "open" ? "No node was running" : "A node was running again";
    case "node": return `Node started on ${inert(e.who, 60)}`;
    case "service": return `${inert(e.what, 80)} first answered at ${inert(e.who, 60)}`;
    case "alert": return `Alert ${inert(e.what, 60)}`;
    default: return inert(`${e.kind} ${e.what}`, 80);
  }
}

/** by is the person who did it. */
export const by = (e) => (["action", "note"].includes(e.kind) && e.who !== "tranche" ? e.who : "");

export const more = (e) => (e.kind === "event" ? "" : e.text ?? "");
