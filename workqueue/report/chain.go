package report

import (
	"bytes"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// chainedRun is a run and those that it carries on, the newest first, read as one: what a later run has of a key
// counts.
type chainedRun struct{ runs []*keyedRun }

// By primary keys. A run carries on an earlier one, so there is an end.
const chainOf = `
WITH RECURSIVE up (id, from_run, n) AS (
    SELECT id, from_run, 0 FROM batchrun WHERE id = $1
    UNION ALL
    SELECT r.id, r.from_run, up.n + 1 FROM up JOIN batchrun r ON r.id = up.from_run
)
SELECT id FROM up ORDER BY n`

// chain finds the runs that are one with a run, and begins to read them, as they stand before a step; "": at the end.
func (s Store) chain(ctx context.Context, id workqueue.RunID, before string) (*chainedRun, error) {
	ids, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], chainOf, id)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", id, err)
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("run %s: %w", id, workqueue.ErrNotFound)
	}
	c := &chainedRun{}
	for _, id := range ids {
		r := &keyedRun{store: s.db, run: id, before: before}
		if err := r.begin(ctx); err != nil {
			return nil, fmt.Errorf("run %s: %w", id, err)
		}
		c.runs = append(c.runs, r)
	}
	return c, nil
}

func (c *chainedRun) read(ctx context.Context, group *errgroup.Group) {
	for _, r := range c.runs {
		group.Go(func() error { return r.read(ctx) })
	}
}

// state is that of the newest of them.
func (c *chainedRun) state() string { return c.runs[0].state }

// peek returns the item that is next, nil at the end.
func (c *chainedRun) peek() (first *keyedItem, err error) {
	for _, r := range c.runs {
		one, err := r.peek()
		if err != nil {
			return nil, err
		}
		if one != nil && (first == nil || bytes.Compare(one.key, first.key) < 0) {
			first = one
		}
	}
	return first, nil
}

// next goes on behind the item that peek returned, in all runs that have its key.
func (c *chainedRun) next() {
	first, _ := c.peek() // its pages are there
	var key []byte
	if first != nil {
		key = first.key
	}
	for _, r := range c.runs {
		if one, err := r.peek(); err == nil && one != nil && bytes.Equal(one.key, key) {
			r.next()
		}
	}
}

// earlier are the runs behind the newest.
func (c *chainedRun) earlier() (ids []workqueue.RunID) {
	for _, r := range c.runs[1:] {
		ids = append(ids, r.run)
	}
	return ids
}

// Together is a run and those that it carries on, counted as one: an item of an earlier run that a later one took
// counts as it stands there.
type Together struct {
	Runs    []workqueue.RunID `json:"runs" doc:"the earlier runs, the latest first"`
	Items   int64             `json:"items"`
	Done    int64             `json:"done"`
	Failed  int64             `json:"failed"`
	Missing int64             `json:"missing"`
}

// What of run $1 was not taken by run $2, whose keys are looked up in work_queue_key. Of a key that stands more than
// once, the first here is the first there, as in a comparison.
const leftBehind = `
WITH planes AS (
    SELECT o.block, o.settled & ~o.failed AS done, o.failed
    FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomePlanes + `) o WHERE r.id = $1
), taken AS (
    SELECT count(*) AS items, count(*) FILTER (WHERE get_bit(p.done, a.ordinal & 8191) = 1) AS done,
        count(*) FILTER (WHERE get_bit(p.failed, a.ordinal & 8191) = 1) AS failed
    FROM (SELECT item_key, count(*) AS n FROM work_queue WHERE run_id = $2 GROUP BY item_key) b
    CROSS JOIN LATERAL (SELECT ordinal FROM work_queue
        WHERE run_id = $1 AND item_key = b.item_key ORDER BY twin LIMIT b.n) a
    LEFT JOIN planes p ON p.block = a.ordinal >> 13
)
SELECT r.items - t.items, coalesce((SELECT sum(bit_count(done)) FROM planes), 0)::bigint - t.done,
    coalesce((SELECT sum(bit_count(failed)) FROM planes), 0)::bigint - t.failed
FROM batchrun r, taken t WHERE r.id = $1`

// readTogether counts a run as one with those that it carries on; nil when it carries on none, or that one is gone.
func readTogether(ctx context.Context, tx pgx.Tx, run *inspect.RunSummary) (*Together, error) {
	if run.FromRun == nil {
		return nil, nil
	}
	ids, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.RunID], chainOf, run.ID)
	if err != nil || len(ids) < 2 {
		return nil, err
	}
	out := &Together{Runs: ids[1:], Items: run.Items, Done: run.Done, Failed: run.Failed}
	for i, id := range ids[1:] {
		var items, done, failed int64
		if err := tx.QueryRow(ctx, leftBehind, id, ids[i]).Scan(&items, &done, &failed); err != nil {
			return nil, err
		}
		out.Items, out.Done, out.Failed = out.Items+items, out.Done+done, out.Failed+failed
	}
	out.Missing = out.Items - out.Done - out.Failed
	return out, nil
}
