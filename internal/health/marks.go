package health

import (
	"time"

	"github.com/tranchehq/tranche/workqueue/health"
)

// MarkWorse is the state of what was put aside, and has got worse since: it is told of again.
const MarkWorse health.MarkState = "worse"

// Mark is what somebody said of a condition.
type Mark struct {
	State  health.MarkState `json:"state" enum:"aside,taken,worse" doc:"worse: it was put aside, and got worse"`
	By     string           `json:"by" doc:"who said so"`
	At     time.Time        `json:"at"`
	Until  *time.Time       `json:"until,omitempty" doc:"until when it is put aside; absent: for good"`
	Reason string           `json:"reason,omitempty"`
	Whole  bool             `json:"whole,omitempty" doc:"it was said of all of the kind that had begun by then"`
}

// divide parts what is to be seen to from what somebody has put aside, by what was said of one, or else of its kind.
func divide(marks []health.Mark, all []Condition) (open, aside []Condition) {
	said := make(map[health.ConditionKey]*health.Mark, len(marks))
	for i := range marks {
		said[marks[i].ConditionKey] = &marks[i]
	}
	of := map[*health.Mark][]*Condition{}
	for i := range all {
		c := &all[i]
		m := said[c.key()]
		if m == nil {
			m = said[health.ConditionKey{Kind: string(c.Kind)}]
		}
		if m != nil && covers(m, c) {
			of[m] = append(of[m], c)
		}
	}
	for m, about := range of {
		state := m.State
		if worst, count := measure(about); state == health.Aside &&
			(count > m.Count || !Severity(m.Severity).Least(worst)) {
			state = MarkWorse
		}
		for _, c := range about {
			c.Mark = &Mark{state, m.By, m.At, m.Until, m.Reason, m.Subject == ""}
		}
	}
	for i := range all {
		if all[i].Mark != nil && all[i].Mark.State == health.Aside {
			aside = append(aside, all[i])
		} else {
			open = append(open, all[i])
		}
	}
	return open, aside
}

// covers reports whether a mark is about a condition: what has begun since is news, unless it was put aside by its
// name.
func covers(m *health.Mark, c *Condition) bool {
	return m.State == health.Aside && m.Subject != "" || !c.Since.After(m.At)
}

// measure is how bad conditions are: the worst severity, and what they count.
func measure(about []*Condition) (worst Severity, count int64) {
	worst = Info
	for _, c := range about {
		if count += c.Count; c.Severity.Least(worst) {
			worst = c.Severity
		}
	}
	return worst, count
}

// Measure is a mark that knows how bad a condition is, or without a subject all of a kind. There is none of what does
// not hold.
func (r *Report) Measure(key health.ConditionKey) (m health.Mark, holds bool) {
	var about []*Condition
	for _, list := range [][]Condition{r.Conditions, r.Aside} {
		for i := range list {
			if c := &list[i]; string(c.Kind) == key.Kind && (key.Subject == "" || c.Subject == key.Subject) {
				about = append(about, c)
			}
		}
	}
	worst, count := measure(about)
	return health.Mark{ConditionKey: key, Severity: string(worst), Count: count}, len(about) > 0
}
