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
}

// divide parts what is to be seen to from what somebody has put aside.
func divide(marks []health.Mark, all []Condition) (open, aside []Condition) {
	said := make(map[health.ConditionKey]*health.Mark, len(marks))
	for i := range marks {
		said[marks[i].ConditionKey] = &marks[i]
	}
	for i := range all {
		c := &all[i]
		if m := said[c.key()]; m != nil && covers(m, c) {
			c.Mark = &Mark{m.State, m.By, m.At, m.Until, m.Reason}
			if m.State == health.Aside && (c.Count > m.Count || !Severity(m.Severity).Least(c.Severity)) {
				c.Mark.State = MarkWorse
			}
		}
		if c.Mark != nil && c.Mark.State == health.Aside {
			aside = append(aside, *c)
		} else {
			open = append(open, *c)
		}
	}
	return open, aside
}

// covers reports whether a mark is about a condition. What somebody has taken, and what is critical, is news when it
// was over and begins once more.
func covers(m *health.Mark, c *Condition) bool {
	return m.State == health.Aside && c.Severity != Critical || !c.Since.After(m.At)
}

// Measure says how bad a condition is, or without a subject all of a kind that are not put aside. There is nothing of
// what does not hold.
func (r *Report) Measure(key health.ConditionKey) (about []health.Measured) {
	lists := [][]Condition{r.Conditions, r.Aside}
	if key.Subject == "" {
		lists = lists[:1]
	}
	for _, list := range lists {
		for i := range list {
			if c := &list[i]; string(c.Kind) == key.Kind && (key.Subject == "" || c.Subject == key.Subject) {
				about = append(about, health.Measured{Subject: c.Subject, Severity: string(c.Severity), Count: c.Count})
			}
		}
	}
	return about
}
