package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Carried is items of a run that has ended, for one that carries it on: keys and payloads, in their order.
type Carried struct {
	db     *database.DB
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

// NewCarried finds the items of a run that has ended which are in some states, failed or missing. A run that goes on is
// a *StateError: what is missing in it would be done twice.
func (s Store) NewCarried(ctx context.Context, id workqueue.RunID, states []workqueue.Outcome) (*Carried, error) {
	c := &Carried{db: s.db, run: id}
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		run, err := inspect.ReadSummary(ctx, tx, id)
		if err != nil {
			return err
		}
		if !run.Ended() {
			return &workqueue.StateError{Run: id, State: run.State, Op: "carry on",
				Fix: "wait until it has ended, or cancel it: tranche run cancel " + id.String()}
		}
		c.gen = run.Generation
		rows := pg.Rows(ctx, tx, carriedPlanes, id)
		var block workqueue.Block
		var size int
		var settled, failed bitfield.Set
		c.blocks = nil
		_, err = pgx.ForEachRow(rows, []any{&block, &size, pgbits.Into(&settled), pgbits.Into(&failed)}, func() error {
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
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("carry on run %s: %w", id, err)
	}
	return c, nil
}

// The items between two ordinals that are wanted, by work_queue's primary key.
const carriedItems = `
SELECT item_key, payload FROM work_queue WHERE run_id = $1 AND ordinal = ANY ($2) ORDER BY ordinal`

// carriedPage is how many items one statement reads.
const carriedPage = 512

const sameGeneration = `SELECT generation = $2 FROM batchrun WHERE id = $1`

// end is io.EOF. Where the run was set going again meanwhile, some of what it yielded is done there, too, or is of
// former data.
func (c *Carried) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	var same bool
	err := c.db.Pool.QueryRow(ctx, sameGeneration, c.run, c.gen).Scan(&same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = errCarriedGone
	case err == nil && !same:
		err = &workqueue.StateError{Run: c.run, State: "set going again meanwhile", Op: "carry on",
			Fix: "wait until it has ended, and start again"}
	case err == nil:
		return io.EOF
	}
	return fmt.Errorf("carry on run %s: %w", c.run, err)
}

var errCarriedGone = fmt.Errorf("items of it are gone: it was deleted meanwhile: %w", workqueue.ErrNotFound)

// Next returns the next item, or io.EOF. A run that was deleted meanwhile, or set going again, is an error.
func (c *Carried) Next(ctx context.Context) (key, payload string, err error) {
	for len(c.page) == 0 {
		if len(c.blocks) == 0 {
			return "", "", c.end(ctx)
		}
		if err := c.read(ctx); err != nil {
			return "", "", fmt.Errorf("carry on run %s: %w", c.run, err)
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
		return i, row.Scan(&i.key, &i.payload)
	})
	if err == nil && len(c.page) != len(ordinals) {
		err = errCarriedGone
	}
	return err
}
