package health

import (
	"context"
	"encoding/json"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue/health"
)

const (
	// seenEvery is how seldom the table is told that a condition is still there.
	seenEvery = 30 * time.Second
	// settledAfter is how long a node that has started says nothing certain of streams that do not answer.
	settledAfter = 15 * time.Second
	// forgetAfter is when what another server has said of itself is forgotten.
	forgetAfter = 24 * time.Hour
	// saidFor is how long what another server has said of itself holds: it says it again twice a minute.
	saidFor = 2 * time.Minute
)

// date says since when the conditions have been so, and keeps it for those of which nothing else tells it: in the
// table, and in memory while there is no database. What the table knew and knows no more has been over meanwhile, maybe
// while this process stood still: then memory does not count.
func (w *Watch) date(ctx context.Context, f *facts, conditions []Condition) {
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
		if !c.unkept {
			continue
		}
		before, known := kept[c.key()]
		first, remembered := w.seen[c.key()]
		switch {
		case known:
			c.Since = before.Since
		case remembered && (f.db == nil || w.unsaved):
			c.Since = first
		case c.Since.IsZero():
			c.Since = f.at
		}
		seen[c.key()] = c.Since
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

// keep makes the row of a condition, and reports whether the one that there was is too old.
func (f *facts) keep(c *Condition, before health.KeptCondition) (row health.KeptCondition, news bool) {
	row = health.KeptCondition{ConditionKey: c.key(), Since: c.Since}
	news = before.SeenAt.Before(f.at.Add(-seenEvery))
	if f.ownOnly(c.key()) {
		row.Said, _ = json.Marshal(c) // of texts, numbers and times
		news = news || c.told(before.Said)
	}
	return row, news
}

// ownOnly reports whether no other server can see a condition of this one's.
func (f *facts) ownOnly(k health.ConditionKey) bool {
	return k.Subject == f.host && (Kind(k.Kind) == Disk || Kind(k.Kind) == Shortage)
}

// told reports whether others are to be told anew of a condition, of which they know what is kept.
func (c *Condition) told(kept json.RawMessage) bool {
	var known Condition
	return json.Unmarshal(kept, &known) != nil || known.Severity != c.Severity
}

// others are what other servers have lately said of themselves.
func (f *facts) others() (all []Condition) {
	if f.db == nil {
		return nil
	}
	for _, k := range f.db.Kept {
		var c Condition
		if k.Said == nil || k.Subject == f.host || k.SeenAt.Before(f.at.Add(-saidFor)) ||
			json.Unmarshal(k.Said, &c) != nil {
			continue
		}
		all = append(all, dated(k.Since, c))
	}
	return all
}

// gone are the kept conditions that are no more: not those that could not be looked at, nor those of other servers.
func (f *facts) gone(seen map[health.ConditionKey]time.Time) (gone []health.ConditionKey) {
	for _, k := range f.db.Kept {
		_, there := seen[k.ConditionKey]
		if !there && (f.looked(k.ConditionKey) || k.SeenAt.Before(f.at.Add(-forgetAfter))) {
			gone = append(gone, k.ConditionKey)
		}
	}
	return gone
}

// looked reports whether this look would have found a condition.
func (f *facts) looked(k health.ConditionKey) bool {
	switch Kind(k.Kind) {
	case NoListeners:
		return f.asked && f.stalled() == nil
	case StreamLimit:
		return f.filled
	case NATS, Disk, Shortage:
		return k.Subject == f.host || k.Subject == jetStream && f.answered()
	default:
		return true
	}
}
