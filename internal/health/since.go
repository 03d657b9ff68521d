package health

import (
	"context"
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
		if !known || before.SeenAt.Before(f.at.Add(-seenEvery)) {
			there = append(there, health.KeptCondition{ConditionKey: c.key(), Since: c.Since})
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
