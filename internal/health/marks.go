package health

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

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

const (
	// markSeenEvery is how seldom the table is told that what a mark is about is still there.
	markSeenEvery = 24 * time.Hour
	// forgetMarkAfter is when what was said of something that nobody has seen since is forgotten.
	forgetMarkAfter = 90 * 24 * time.Hour
)

// divide parts what is to be seen to from what somebody has put aside.
func divide(marks []health.Mark, all []Condition) (open, aside []Condition) {
	said := make(map[health.ConditionKey]*health.Mark, len(marks))
	for i := range marks {
		said[marks[i].ConditionKey] = &marks[i]
	}
	for i := range all {
		c := &all[i]
		if m := said[c.key()]; m != nil && !begunAgain(m, c) {
			c.Mark = &Mark{m.State, m.By, m.At, m.Until, m.Reason}
			if m.WorseAt != nil {
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

// begunAgain reports whether what a mark is about was over and has begun once more, which is news of what somebody has
// taken and of what is critical.
func begunAgain(m *health.Mark, c *Condition) bool {
	return (m.State == health.Taken || c.Severity == Critical) && c.Since.After(m.At)
}

// worse reports whether a condition is worse than it was when somebody put it aside.
func worse(m *health.Mark, c *Condition) bool {
	return m.State == health.Aside &&
		(c.Count > m.Count || !Severity(m.Severity).Least(c.Severity) || begunAgain(m, c))
}

// watchMarks keeps of what people said of conditions whether it still is as they said. What once got worse stays so
// until it is over: what flaps would be told with each turn.
func (w *Watch) watchMarks(ctx context.Context, f *facts, conditions []Condition) {
	there := make(map[health.ConditionKey]*Condition, len(conditions))
	for i := range conditions {
		there[conditions[i].key()] = &conditions[i]
	}
	var cut []Kind
	if f.db != nil {
		cut = f.cut(f.listed)
	}
	var news []health.SeenMark
	for i := range w.marks {
		m := &w.marks[i]
		c := there[m.ConditionKey]
		if c == nil && (slices.Contains(cut, Kind(m.Kind)) || f.db == nil) {
			continue // it may be there
		}
		if note, isNews := f.watchMark(m, c); isNews {
			news = append(news, note)
		}
	}
	if len(news) == 0 || f.db == nil {
		return
	}
	if err := health.New(w.cfg.Store).NoteMarks(ctx, news, f.at); err != nil {
		w.cfg.Log.Debug("note what became of what people have seen to", zap.Error(err))
	}
}

// watchMark holds a mark against the condition that it is about, if there is one, and says what of it is to be kept.
func (f *facts) watchMark(m *health.Mark, c *Condition) (note health.SeenMark, news bool) {
	note.Mark = *m
	if c == nil {
		over := m.WorseAt != nil && f.looked(m.ConditionKey)
		if over {
			m.WorseAt = nil
		}
		note.Forget = m.SeenAt.Before(f.at.Add(-forgetMarkAfter))
		return note, over || note.Forget
	}
	note.Seen = true
	if note.Worse = m.WorseAt == nil && worse(m, c); note.Worse {
		m.WorseAt = &f.at
	}
	return note, note.Worse || m.SeenAt.Before(f.at.Add(-markSeenEvery))
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
