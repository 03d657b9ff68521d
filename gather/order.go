package gather

import "slices"

// Ordered returns the plan with its steps in an order in which each comes after those it needs; otherwise they stay as
// they stand. The plan has to be valid.
func (p *Plan) Ordered() *Plan {
	out := p.clone()
	rest, placed := out.Steps, map[string]bool{}
	out.Steps = make([]Step, 0, len(rest))
	for len(rest) > 0 {
		next := slices.IndexFunc(rest, func(s Step) bool {
			return !slices.ContainsFunc(s.Needs, func(need string) bool { return !placed[need] })
		})
		if next < 0 {
			panic("gather: Ordered of a plan whose steps wait for each other")
		}
		placed[rest[next].Name] = true
		out.Steps = append(out.Steps, rest[next])
		rest = slices.Delete(rest, next, next+1)
	}
	return out
}
