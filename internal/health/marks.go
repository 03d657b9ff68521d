package health

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue/health"
)

const (
	// markSeenEvery is the minimum interval for recording that a mark's condition still holds.
	markSeenEvery = 24 * time.Hour
	// forgetMarkAfter is when a mark is deleted whose condition was not seen since.
	forgetMarkAfter = 90 * 24 * time.Hour
)

func divide(marks []health.KeptMark, all []health.Condition) (open, muted []health.Condition) {
	said := make(map[health.ConditionKey]*health.KeptMark, len(marks))
	for i := range marks {
		said[marks[i].ConditionKey] = &marks[i]
	}
	for i := range all {
		c := &all[i]
		if m := said[c.Key()]; m != nil && !begunAgain(m, c) {
			c.Mark = &health.Mark{State: m.State, By: m.By, At: m.At, Until: m.Until, Reason: m.Reason}
			if m.WorseAt != nil {
				c.Mark.State = health.MarkWorse
			}
		}
		if c.Mark != nil && c.Mark.State == health.Muted {
			muted = append(muted, *c)
		} else {
			open = append(open, *c)
		}
	}
	return open, muted
}

// begunAgain reports whether a mark's condition ended and began again, which matters for acknowledged and for
// critical ones.
func begunAgain(m *health.KeptMark, c *health.Condition) bool {
	return (m.State == health.Acknowledged || c.Severity == health.Critical) && c.Since.After(m.At)
}

func worse(m *health.KeptMark, c *health.Condition) bool {
	return m.State == health.Muted &&
		(c.Count > m.Count || !health.Severity(m.Severity).Least(c.Severity) || begunAgain(m, c))
}

// watchMarks records whether marked conditions got worse. What once got worse stays so until it ends, because a
// flapping condition would otherwise be reported at each change.
func (w *Watch) watchMarks(ctx context.Context, f *facts, conditions []health.Condition) {
	there := make(map[health.ConditionKey]*health.Condition, len(conditions))
	for i := range conditions {
		there[conditions[i].Key()] = &conditions[i]
	}
	var news []health.SeenMark
	for i := range w.marks {
		m := &w.marks[i]
		c := there[m.ConditionKey]
		if c == nil && (f.db == nil || slices.Contains(f.db.Cut, health.Kind(m.Kind))) {
			continue // it may still hold
		}
		if note, isNews := f.watchMark(m, c); isNews {
			news = append(news, note)
		}
	}
	if len(news) == 0 || f.db == nil {
		return
	}
	if err := health.New(w.cfg.Store).NoteMarks(ctx, news, f.at); err != nil {
		w.cfg.Log.Debug("record how acknowledged conditions ended", zap.Error(err))
	}
}

// watchMark compares a mark with its condition, if it holds, and returns what to record.
func (f *facts) watchMark(m *health.KeptMark, c *health.Condition) (note health.SeenMark, news bool) {
	note.KeptMark = *m
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

// Measure returns the severity of a condition or, without a subject, of all unmuted ones of a kind; nothing for
// conditions that do not hold.
func (r *Report) Measure(key health.ConditionKey) (about []health.Measured) {
	lists := [][]health.Condition{r.Conditions, r.Muted}
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

const (
	// seenEvery is the minimum interval for recording that a condition still holds.
	seenEvery = 30 * time.Second
	// settledAfter is how long a started node knows nothing certain about unresponsive streams.
	settledAfter = 15 * time.Second
	// forgetAfter is when another server's report about itself is deleted.
	forgetAfter = 24 * time.Hour
	// saidFor is how long another server's report about itself counts: it is repeated twice a minute.
	saidFor = 2 * time.Minute
)

// date sets the begins of conditions, and keeps those that nothing else records: in the table, and in memory while
// there is no database. A row that is gone means that the condition ended meanwhile, maybe while this process was
// stalled: then memory does not count.
func (w *Watch) date(ctx context.Context, f *facts, conditions []health.Condition) {
	kept := map[health.ConditionKey]health.KeptCondition{}
	if f.db != nil {
		for _, k := range f.db.Kept {
			kept[k.ConditionKey] = k
		}
	}
	seen := map[health.ConditionKey]time.Time{}
	var there []health.KeptCondition
	for i := range conditions {
		c := &conditions[i]
		if !c.Undated {
			continue
		}
		before, known := kept[c.Key()]
		first, remembered := w.seen[c.Key()]
		switch {
		case known:
			c.Since = before.Since
		case remembered && (f.db == nil || w.unsaved):
			c.Since = first
		case c.Since.IsZero():
			c.Since = f.at
		}
		seen[c.Key()] = c.Since
		if row, news := f.keep(c, before); news || !known {
			there = append(there, row)
		}
	}
	w.seen, w.unsaved = seen, true
	if f.db == nil {
		return
	}
	err := health.New(w.cfg.Store).KeepConditions(ctx, there, f.gone(seen), f.at)
	if w.unsaved = err != nil; w.unsaved {
		w.cfg.Log.Debug("keep since when something has been so", zap.Error(err))
	}
}

// keep returns the row of a condition, and whether the stored one is outdated.
func (f *facts) keep(c *health.Condition, before health.KeptCondition) (row health.KeptCondition, news bool) {
	row = health.KeptCondition{ConditionKey: c.Key(), Since: c.Since}
	news = before.SeenAt.Before(f.at.Add(-seenEvery))
	if c.Subject == f.host && (c.Kind == health.Disk || c.Kind == health.ResourceExhausted) {
		row.Said, _ = json.Marshal(c) // texts, numbers and times
		var known health.Condition
		news = news || json.Unmarshal(before.Said, &known) != nil || known.Severity != c.Severity
	}
	return row, news
}

func (f *facts) others() (all []health.Condition) {
	if f.db == nil {
		return nil
	}
	for _, k := range f.db.Kept {
		var c health.Condition
		if k.Said == nil || k.Subject == f.host || k.SeenAt.Before(f.at.Add(-saidFor)) ||
			json.Unmarshal(k.Said, &c) != nil {
			continue
		}
		c.Since = k.Since
		all = append(all, c)
	}
	return all
}

// gone returns stored conditions that no longer hold, except those that were not checked and those of other servers.
func (f *facts) gone(seen map[health.ConditionKey]time.Time) (gone []health.ConditionKey) {
	for _, k := range f.db.Kept {
		_, there := seen[k.ConditionKey]
		if !there && (f.looked(k.ConditionKey) || k.SeenAt.Before(f.at.Add(-forgetAfter))) {
			gone = append(gone, k.ConditionKey)
		}
	}
	return gone
}

// looked reports whether this check would have found a condition.
func (f *facts) looked(k health.ConditionKey) bool {
	switch health.Kind(k.Kind) {
	case health.NoListeners:
		return f.asked && f.stalled() == nil
	case health.StreamLimit:
		return f.filled
	case health.NATS, health.Disk, health.ResourceExhausted:
		return k.Subject == f.host || k.Subject == health.JetStream && f.answered()
	default:
		return true
	}
}
