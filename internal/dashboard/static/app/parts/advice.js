// Lists what an operator could do about an explanation, without repetition, most important first.

/** adviceOnce returns {first, groups} of an explanation; groups keep only advice not given before. */
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
