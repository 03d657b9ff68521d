package settle

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// FollowUp is what a transaction gives reason to look at. Nothing depends on it: the leader looks at everything by
// itself, a second later.
type FollowUp struct {
	Endpoints []string          // where slices failed as a whole, or a probe ended: for pace.Store.CheckBreaker
	Halved    []string          // where pieces of failed chunks ended: for pace.Store.CheckTooBig
	Runs      []workqueue.RunID // of which items failed for good: for control.Store.CheckThreshold
	Barriers  []workqueue.RunID // of which a step may have all that it waited for: for dispatch.Store.CheckBarriers
	Unlocked  bool              // items became ready at other steps, which other nodes may have room for
}

// Empty reports whether there is nothing to look at.
func (l *FollowUp) Empty() bool {
	return len(l.Endpoints)+len(l.Halved)+len(l.Runs)+len(l.Barriers) == 0 && !l.Unlocked
}

// followUp gathers it from a settlement.
func (s *settlement) followUp() (l FollowUp) {
	l.Barriers, l.Unlocked = s.barriers, s.unlocked
	for _, e := range s.ended {
		h := e.slice
		if (e.why != nil || h.Cause == workqueue.CauseProbe) && !slices.Contains(l.Endpoints, h.Endpoint) {
			l.Endpoints = append(l.Endpoints, h.Endpoint)
		}
		piece := h.Cause == workqueue.CauseBisect || h.Cause == workqueue.CauseExhausted
		if piece && !slices.Contains(l.Halved, h.Endpoint) {
			l.Halved = append(l.Halved, h.Endpoint)
		}
	}
	for id, o := range s.outcomes {
		if !o.Failed.Empty() && !slices.Contains(l.Runs, id.Run) {
			l.Runs = append(l.Runs, id.Run)
		}
	}
	return l
}

// watchedEndpoints reads, endpoint by endpoint, the newest end of the index on endpoint and end. Here and elsewhere the
// clock is read in a SELECT of its own: otherwise it would be read for every row, and an index not be of use for it.
const watchedEndpoints = `
SELECT p.endpoint FROM endpoint_pace p
WHERE p.breaker = 'open' OR EXISTS (
    SELECT FROM (SELECT s.error_code FROM work_slice s
                 WHERE s.endpoint = p.endpoint AND s.ended_at > (SELECT tranche_now() - interval '10 s')
                 ORDER BY s.ended_at DESC LIMIT 200) newest
    WHERE newest.error_code IS NOT NULL)
  OR EXISTS (
    SELECT FROM collector c JOIN collector_key k ON k.collector = c.id
    WHERE c.endpoint = p.endpoint AND k.failed_at > (SELECT tranche_now() - interval '10 s'))
ORDER BY p.endpoint`

// WatchedEndpoints returns the endpoints whose breakers are open, or of which requests failed a short while ago: those
// that pace.Store.CheckBreaker and pace.Store.CheckTooBig may have something to do at.
func (s Store) WatchedEndpoints(ctx context.Context) ([]string, error) {
	names, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[string], watchedEndpoints)
	if err != nil {
		return nil, fmt.Errorf("look for endpoints whose requests fail: %w", err)
	}
	return names, nil
}
