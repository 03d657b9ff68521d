package inspect

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// errorsCache keeps the groups of errors of the runs that were looked at last. They are true as long as no block of the
// run has changed: what was recorded of an item stays, and whether it counts is said by its block.
type errorsCache struct {
	mu      sync.Mutex
	entries map[workqueue.RunID]*cachedErrors
	looks   int64
}

// maxCachedErrors bounds the runs, each of which has a megabyte or so at the most.
const maxCachedErrors = 16

// Of a run of which more fails while it is looked at, groups that took long to make are given for a while.
const (
	slowErrors = time.Second // making them takes so long at least
	staleRatio = 5           // times that
)

// cachedErrors is what is known of one run.
type cachedErrors struct {
	turn   chan struct{} // holds a value while nobody is at it
	looked int64
	errors Errors
	extent ErrorsExtent
	took   time.Duration
	known  bool
}

// ErrorsExtent tells one state of a run's errors from others.
type ErrorsExtent struct {
	generation workqueue.Generation
	steps      []stepErrors
	at         time.Time
}

type stepErrors struct {
	name     string
	optional bool
	failed   int64
	accepted int64
	stamp    int64 // greater with every change of a block
}

func (c *errorsCache) of(run workqueue.RunID) *cachedErrors {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[workqueue.RunID]*cachedErrors{}
	}
	e := c.entries[run]
	if e == nil {
		if len(c.entries) >= maxCachedErrors {
			oldest := run
			for id, other := range c.entries {
				if c.entries[oldest] == nil || other.looked < c.entries[oldest].looked {
					oldest = id
				}
			}
			maps.DeleteFunc(c.entries, func(id workqueue.RunID, _ *cachedErrors) bool { return id == oldest })
		}
		e = &cachedErrors{turn: make(chan struct{}, 1)}
		e.turn <- struct{}{}
		c.entries[run] = e
	}
	c.looks++
	e.looked = c.looks
	return e
}

func (e *cachedErrors) lock(ctx context.Context) error {
	select {
	case <-e.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for others who look at them: %w", context.Cause(ctx))
	}
}

func (e *cachedErrors) unlock() { e.turn <- struct{}{} }

// serves reports whether the groups are those of a state, or not much older and dear.
func (e *cachedErrors) serves(now *ErrorsExtent) bool {
	if !e.known || e.extent.generation != now.generation {
		return false
	}
	same := len(e.extent.steps) == len(now.steps)
	for i := range now.steps {
		if same && e.extent.steps[i].accepted != now.steps[i].accepted { // who has accepted some wants to see it
			return false
		}
		same = same && e.extent.steps[i] == now.steps[i]
	}
	return same || e.took >= slowErrors && now.at.Sub(e.extent.at) < staleRatio*e.took
}

func (e *cachedErrors) keep(found Errors, of ErrorsExtent, took time.Duration) {
	e.errors, e.extent, e.took, e.known = found, of, took, true
}

// A range of work_block's primary key. xmin is the transaction that wrote a row last: their sum grows with each.
const errorsOfSteps = `
SELECT r.generation, tranche_now(), s.name, s.optional, coalesce(sum(bit_count(b.failed)), 0)::bigint,
    coalesce(sum(bit_count(b.accepted)), 0)::bigint,
    coalesce(sum(b.xmin::text::bigint), 0)::bigint
FROM batchrun r JOIN run_step s ON s.run_id = r.id
LEFT JOIN work_block b ON b.run_id = s.run_id AND b.step = s.step
WHERE r.id = $1
GROUP BY r.generation, s.step, s.name, s.optional
ORDER BY s.step`

// ReadExtent reads how many errors a run has, by step.
func ReadExtent(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (ErrorsExtent, error) {
	var out ErrorsExtent
	rows := pg.Rows(ctx, tx, errorsOfSteps, run)
	var step stepErrors
	to := []any{&out.generation, &out.at, &step.name, &step.optional, &step.failed, &step.accepted, &step.stamp}
	_, err := pgx.ForEachRow(rows, to, func() error {
		out.steps = append(out.steps, step)
		return nil
	})
	if err == nil && len(out.steps) == 0 {
		return out, workqueue.ErrNotFound
	}
	if err != nil {
		return out, fmt.Errorf("count what is failed: %w", err)
	}
	return out, nil
}

// ByStep is how many errors there are at each step.
func (x *ErrorsExtent) ByStep() []StepErrors {
	all := []StepErrors{}
	for _, s := range x.steps {
		if s.failed > 0 {
			all = append(all, StepErrors{s.name, s.optional, s.failed})
		}
	}
	return all
}
