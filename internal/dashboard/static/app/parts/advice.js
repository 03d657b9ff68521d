// What an operator could do about an explanation, once: what someone has to do stands first, and no group repeats it.

/** adviceOnce returns {first, groups} of an explanation; the groups keep what has not been advised before them. */
export function adviceOnce(e) {
  const said = new Set();
  const fresh = (advice) => (advice ?? []).filter((a) => {
    const text = a.do + "\n" + a.command;
    return !said.has(text) && said.add(text);
  });
  const all = e.groups ?? [];
  const first = fresh([...all.filter((g) => g.owner === "operator" || g.owner === "nats").flatMap((g) => g.advice ?? []),
    ...e.advice ?? []]);
  return { first, groups: all.map((g) => ({ ...g, advice: fresh(g.advice) })) };
}
