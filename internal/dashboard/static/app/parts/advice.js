// What an explanation says to do: equal causes together, each advice once, and the buttons that do it or lead there.
import { named } from "../places.js";

/** causesOf returns {causes, advice}: groups with the same cause merged, and the advice that is about none of them. */
export function causesOf(e) {
  const said = new Set();
  const fresh = (advice) => (advice ?? []).filter((a) => {
    const text = a.do + "\n" + a.command;
    return !said.has(text) && said.add(text);
  });
  const causes = new Map();
  for (const g of e.groups ?? []) {
    const key = `${g.reason}/${g.endpoint || g.who}`;
    const c = causes.get(key) ?? { ...g, items: 0, most: 0, advice: [], steps: [], since: undefined };
    causes.set(key, c);
    c.items += g.counted ?? g.items;
    c.most = Math.max(c.most, g.items);
    c.steps = [...new Set([...c.steps, g.step, ...(g.steps ?? []).map((s) => s.step)])].filter(Boolean);
    if (g.why.length < c.why.length) c.why = g.why;
    if (g.since && !(c.since <= g.since)) c.since = g.since;
    c.advice.push(...fresh(g.advice));
  }
  return { causes: [...causes.values()].map((c) => ({ ...c, items: c.items || c.most })), advice: fresh(e.advice) };
}

const remedies = [
  [/^tranche run errors (\S+)/, () => "What failed", (run) => `/runs/${encodeURIComponent(run)}/errors`],
  [/^tranche run (approve|resume|seal) (\S+)/, (act) => ({ approve: "Review and approve", resume: "Resume…", seal: "Seal" })[act],
    (act, run) => `/runs/${encodeURIComponent(run)}`],
  [/^tranche endpoints \w+ '?([^\s']+)/, (name) => `Endpoint ${name}`, (name) => named("/endpoint", name)],
  [/^tranche collector show (\S+)/, (name) => `Collector ${name}`, (name) => named("/collectors", name)],
  [/^tranche schedule \S+ (\S+)/, (name) => `Schedule ${name}`, (name) => named("/schedules", name)],
  [/^tranche (?:dlq|quarantine) list/, () => "Dead letters", () => "/dead-letters"],
];

/** buttonsOf are the buttons of advice, each once: [{label, to, act}]; act is approve, resume, seal or nothing. */
export function buttonsOf(advice) {
  const out = new Map();
  for (const { command } of advice) {
    for (const [pattern, label, to] of remedies) {
      const found = pattern.exec(command ?? "")?.slice(1);
      if (found) out.set(label(...found), { label: label(...found), to: to(...found), act: found.length > 1 ? found[0] : "" });
    }
  }
  return [...out.values()];
}

/** telling are the words of a command that not all the commands have: where they differ. */
export function telling(command, commands) {
  const all = commands.map((c) => c.split(" "));
  return command.split(" ").map((word) => [word, !all.every((words) => words.includes(word))]);
}
