package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Carried reads the keys and payloads of some items of an ended run, in order, for a run that continues it.
type Carried struct {
	db     *database.DB
	seal   *database.Seal
	run    workqueue.RunID
	gen    workqueue.Generation
	blocks []carriedBlock
	page   []carriedItem
}

type carriedBlock struct {
	number workqueue.Block
	items  bitfield.Set
}

type carriedItem struct{ key, payload string }

// A range of work_block's primary key.
const carriedPlanes = `
SELECT o.block, o.size, o.settled, o.failed FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomePlanes + `) o
WHERE r.id = $1 ORDER BY o.block`

// NewCarried finds failed or missing items of an ended run. A run in progress is a *StateError: it would do them, too.
func (s Store) NewCarried(ctx context.Context, id workqueue.RunID, states []workqueue.Outcome) (*Carried, error) {
	c := &Carried{db: s.db, run: id}
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		run, err := inspect.ReadSummary(ctx, tx, id)
		if err != nil {
			return err
		}
		if !run.Ended() {
			return &workqueue.StateError{Run: id, State: run.State, Op: "continue",
				Fix: "wait until it ends, or cancel it: tranche run cancel " + id.String()}
		}
		if c.seal, err = s.db.Seal(ctx, tx, id); err != nil {
			return err
		}
		c.gen = run.Generation
		var block workqueue.Block
		var size int
		var settled, failed bitfield.Set
		c.blocks = nil
		var known int64 // items in blocks
		err = pg.Each(pg.Rows(ctx, tx, carriedPlanes, id),
			[]any{&block, &size, pgbits.Into(&settled), pgbits.Into(&failed)}, func() {
				known += int64(size)
				var items bitfield.Set
				if slices.Contains(states, workqueue.OutcomeFailed) {
					items = items.Or(failed)
				}
				if slices.Contains(states, workqueue.OutcomeMissing) {
					items = items.Or(bitfield.Full(size).AndNot(settled.Or(failed)))
				}
				if !items.Empty() {
					c.blocks = append(c.blocks, carriedBlock{block, items})
				}
			})
		// The newest items of an open run that was cancelled have no block.
		for ; known < run.Items && slices.Contains(states, workqueue.OutcomeMissing); known += bitfield.Size {
			block, _ := workqueue.Ordinal(known).Block()
			c.blocks = append(c.blocks, carriedBlock{block, bitfield.Full(int(min(bitfield.Size, run.Items-known)))})
		}
		return err
	})
	return c, pg.Wrap(err, "continue run %s", id)
}

// By work_queue's primary key.
const carriedItems = `
SELECT item_key, payload FROM work_queue WHERE run_id = $1 AND ordinal = ANY ($2) ORDER BY ordinal`

const carriedPage = 512

const sameGeneration = `SELECT generation = $2 FROM batchrun WHERE id = $1`

// end is io.EOF. If the run was restarted meanwhile, that is an error: its items may be done, or outdated.
func (c *Carried) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	var same bool
	err := c.db.Pool.QueryRow(ctx, sameGeneration, c.run, c.gen).Scan(&same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = errCarriedGone
	case err == nil && !same:
		err = &workqueue.StateError{Run: c.run, State: "reopened meanwhile", Op: "continue",
			Fix: "wait until it ends, and start again"}
	case err == nil:
		return io.EOF
	}
	return fmt.Errorf("continue run %s: %w", c.run, err)
}

var errCarriedGone = fmt.Errorf("items of it are gone: it was deleted meanwhile: %w", workqueue.ErrNotFound)

// Next returns the next item, or io.EOF. It returns an error if the run was deleted or restarted meanwhile.
func (c *Carried) Next(ctx context.Context) (key, payload string, err error) {
	for len(c.page) == 0 {
		if len(c.blocks) == 0 {
			return "", "", c.end(ctx)
		}
		if err := c.read(ctx); err != nil {
			return "", "", fmt.Errorf("continue run %s: %w", c.run, err)
		}
	}
	one := c.page[0]
	c.page = c.page[1:]
	return one.key, one.payload, nil
}

func (c *Carried) read(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	b := &c.blocks[0]
	now := b.items.Take(carriedPage)
	if b.items = b.items.AndNot(now); b.items.Empty() {
		defer func() { c.blocks = c.blocks[1:] }()
	}
	var ordinals []workqueue.Ordinal
	for bit := range now.All() {
		ordinals = append(ordinals, b.number.Ordinal(bit))
	}
	rows := pg.Rows(ctx, c.db.Pool, carriedItems, c.run, ordinals)
	c.page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (i carriedItem, err error) {
		var payload []byte
		if err = row.Scan(&i.key, &payload); err == nil {
			payload, err = c.seal.OpenText(database.PayloadOf(i.key), payload)
		}
		i.payload = string(payload)
		return i, err
	})
	if err == nil && len(c.page) != len(ordinals) {
		err = errCarriedGone
	}
	return err
}

// chainedRun reads a run and those that it continues as one, newest first: later items override earlier ones.
type chainedRun struct{ runs []*keyedRun }

// By primary keys. A run continues only earlier ones, so it ends.
const chainOf = `
WITH RECURSIVE up (id, from_run, n) AS (
    SELECT id, from_run, 0 FROM batchrun WHERE id = $1
    UNION ALL
    SELECT r.id, r.from_run, up.n + 1 FROM up JOIN batchrun r ON r.id = up.from_run
)
SELECT id FROM up ORDER BY n`

// chain finds the runs that a run continues, and starts reading them, as of before a step, or with "" their results.
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
		seal, err := s.db.Seal(ctx, s.db.Pool, id)
		if err != nil {
			return nil, err
		}
		r := &keyedRun{store: s.db, seal: seal, run: id, before: before}
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

// peek returns the next item, nil at the end.
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

// next advances past the item that peek returned, in all runs that have its key.
func (c *chainedRun) next() {
	first, _ := c.peek() // its pages are loaded
	for i, r := range c.runs {
		switch one, err := r.peek(); {
		case first == nil || err != nil || one == nil:
		case one == first:
			r.page = r.page[1:]
		case bytes.Equal(one.key, first.key):
			r.drop(c.runs[i-1].took)
		}
	}
}

// Together is the counts of a run and those that it continues. An item counts where it was last taken.
type Together struct {
	Runs    []workqueue.RunID `json:"runs" doc:"the earlier runs, the latest first"`
	Items   int64             `json:"items"`
	Done    int64             `json:"done"`
	Failed  int64             `json:"failed"`
	Missing int64             `json:"missing"`
}

// What run $2 did not take of run $1, by work_queue_key. Of duplicate keys it took those of its from_outcome, or not
// done, in order.
const leftBehind = `
WITH planes AS (
    SELECT o.block, o.settled & ~o.failed AS done, o.failed
    FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomePlanes + `) o WHERE r.id = $1
), taken AS (
    SELECT count(*) AS items, coalesce(sum(a.done), 0) AS done, coalesce(sum(a.failed), 0) AS failed
    FROM (SELECT b.n, get_bit(p.done, q.ordinal & 8191) AS done, get_bit(p.failed, q.ordinal & 8191) AS failed,
            row_number() OVER (PARTITION BY b.item_key ORDER BY coalesce(get_bit(p.done, q.ordinal & 8191), 0),
                CASE c.from_outcome WHEN 'failed' THEN -1 WHEN 'missing' THEN 1 END
                    * coalesce(get_bit(p.failed, q.ordinal & 8191), 0), q.key_ordinal) AS nth
        FROM (SELECT item_key, count(*) AS n FROM work_queue WHERE run_id = $2 GROUP BY item_key) b
        JOIN work_queue q ON q.run_id = $1 AND q.item_key = b.item_key
        JOIN batchrun c ON c.id = $2
        LEFT JOIN planes p ON p.block = q.ordinal >> 13) a
    WHERE a.nth <= a.n
)
SELECT r.items - t.items, coalesce((SELECT sum(bit_count(done)) FROM planes), 0)::bigint - t.done,
    coalesce((SELECT sum(bit_count(failed)) FROM planes), 0)::bigint - t.failed
FROM batchrun r, taken t WHERE r.id = $1`

// readTogether counts a run together with those that it continues; nil if it continues none.
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
