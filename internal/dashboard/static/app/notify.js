// Sends a system notification when a run ends or waits for a decision, even while the tab is hidden.
import { api, segment } from "./api.js";
import { signal } from "./html.js";
import { inert, num } from "./format.js";

const EVERY = 15_000; // ms

// awaited are the runs to be notified of, as long as the tab is open.
export const awaited = signal(new Set());

export const possible = () => "Notification" in globalThis && Notification.permission !== "denied";

// notify reports the end or hold of a run. Resolves to false if the user denies permission.
export async function notify(run) {
  if (await Notification.requestPermission() !== "granted") return false;
  awaited.value = new Set([...awaited.value, run.id]);
  const timer = setInterval(async () => {
    let now;
    try {
      now = await api.get(`/runs/${segment(run.id)}`);
    } catch {
      return; // temporarily unavailable
    }
    const over = now.state === "completed" || now.state === "cancelled";
    if (!over && !now.hold) return;
    clearInterval(timer);
    awaited.value = new Set([...awaited.value].filter((id) => id !== run.id));
    const note = new Notification(inert(now.name || now.plan, 80), { tag: run.id,
      body: over ? `${now.state}, ${num(now.failed)} failed` : `held: ${inert(now.hold.detail || now.hold.kind, 120)}` });
    note.onclick = () => {
      focus();
      note.close();
    };
  }, EVERY);
  return true;
}
