package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// ItemOrderError is returned by intake for an item without a valid lane.
type ItemOrderError struct {
	Key     string
	Item    workqueue.Ordinal
	Line    int    // 0 if unknown
	Unit    string // what Line counts; empty: lines
	Problem string
}

func (e *ItemOrderError) Error() string {
	const fix = "; no item was taken. Give every item a value for order_by, or leave order_by out"
	place := fmt.Sprintf("item %d", e.Item+1)
	if e.Line > 0 {
		place = fmt.Sprintf("%s %d", cmp.Or(e.Unit, "line"), e.Line)
	}
	return fmt.Sprintf("%s, key %.80q: %s%s", place, e.Key, e.Problem, fix)
}

func (r *LoadRequest) checkOrder() error {
	if r.Order == nil {
		return nil
	}
	if err := r.Order.Rule.Validate(); err != nil {
		return workqueue.BadSetting("%v", err)
	}
	switch {
	case r.Canary > 0:
		return workqueue.BadSetting("a canary does not go with order_by: its sample is spread over all items, and would be " +
			"processed before the items ahead of it; leave one of the two out")
	case slices.ContainsFunc(r.Steps, func(s workqueue.StepSpec) bool { return s.Barrier && len(s.Needs) > 0 }):
		return workqueue.BadSetting("a step with a barrier does not go with order_by: it waits for all items, and items " +
			"wait until it has done those before them; leave one of the two out")
	case r.Order.Stop && slices.ContainsFunc(r.Steps, func(s workqueue.StepSpec) bool { return s.Optional }):
		return workqueue.BadSetting("on_failure: stop does not go with optional steps: what comes after one would continue " +
			"for items that are stopped; leave one of the two out")
	}
	return nil
}

func (l *loader) lane(item *LoadItem, ordinal int) (int64, error) {
	if l.req.Order == nil {
		return 0, nil
	}
	rule := &l.req.Order.Rule
	value, err := rule.Value(item.Key, item.Payload)
	if err != nil {
		return 0, &ItemOrderError{Key: item.Key, Item: workqueue.Ordinal(ordinal), Line: item.Line, Unit: l.req.Unit,
			Problem: err.Error()}
	}
	return rule.Lane(value), nil
}

const insertOrder = `INSERT INTO run_order (run_id, rule, stop) VALUES ($1, $2, $3)`

const readOrder = `SELECT rule, stop FROM run_order WHERE run_id = $1`

// OrderOf reads how the items of a run are put in lanes; nil if they are not.
func OrderOf(ctx context.Context, db tracker.Querier, run workqueue.RunID) (*workqueue.RunOrder, error) {
	o := &workqueue.RunOrder{}
	err := db.QueryRow(ctx, readOrder, run).Scan(&o.Rule, &o.Stop)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return o, pg.Wrap(err, "read the order of run %s", run)
}

// copyLanes and putLanes must match.
const copyLanes = `COPY work_order (run_id, ordinal, lane) FROM STDIN (FORMAT binary)`

func (l *loader) putLanes(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	b.copy.Reset()
	for i, row := range b.rows {
		b.copy.Row(3)
		b.copy.UUID(l.run)
		b.copy.Int4(int32(b.base + i))
		b.copy.Int8(row.lane)
	}
	err := b.copy.Send(ctx, tx, copyLanes)
	return pg.Wrap(err, "write the lines of items %d to %d", b.base, b.base+len(b.rows)-1)
}

// lineUp inserts the lanes of the items from ordinal $2 up to $3, whose blocks are inserted next; in existing lanes
// they queue behind the rest. It returns the heads of all these lanes. Rows are locked by lane, as everywhere: a
// recorder that finds no successor for its item either did so before, so the lane has no head here, or waits and sees
// the new blocks.
const lineUp = `
INSERT INTO work_lane AS l (run_id, lane, head)
SELECT run_id, lane, min(ordinal) FROM work_order WHERE run_id = $1 AND ordinal >= $2 AND ordinal < $3
GROUP BY run_id, lane ORDER BY lane
ON CONFLICT (run_id, lane) DO UPDATE SET
    head = CASE WHEN l.stopped_by IS NULL THEN coalesce(l.head, excluded.head) END,
    low = CASE WHEN l.stopped_by IS NULL THEN l.low ELSE coalesce(l.low, excluded.head) END,
    due = l.stopped_by IS NOT NULL
RETURNING head`

// headsFirst returns, block by block, which items from an ordinal up to another are the heads of their lanes.
func headsFirst(ctx context.Context, tx pgx.Tx, run workqueue.RunID, from, to int64) ([]bitfield.Set, error) {
	heads := make([]bitfield.Set, (to-from+bitfield.Size-1)/bitfield.Size)
	var head *int64
	err := pg.Each(pg.Rows(ctx, tx, lineUp, run, from, to), []any{&head}, func() {
		if head != nil && *head >= from && *head < to {
			heads[(*head-from)/bitfield.Size].Add(int((*head - from) % bitfield.Size))
		}
	})
	return heads, pg.Wrap(err, "put items in line")
}

// freePartition finds the partition with the least data, except the one that most runs share. It compares file
// sizes, which need no reading. It picks an empty one at random, so that two concurrent loads seldom choose the
// same. If they do, or none is empty, runs share one and are deleted row by row until its last one goes.
const freePartition = `
SELECT right(c.relname, 2)::int FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent IN ('work_queue'::regclass, 'work_result'::regclass) AND c.relname !~ '_00$'
GROUP BY 1 ORDER BY coalesce(sum(pg_relation_size(c.oid)), 0), random() LIMIT 1`

// choosePartition gives a large load, before anything is written, an ID in the emptiest partition.
func (l *loader) choosePartition(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	var free int
	if err := l.store.Pool.QueryRow(ctx, freePartition).Scan(&free); err != nil {
		return fmt.Errorf("find a free partition: %w", err)
	}
	l.run = workqueue.NewRunIDIn(free)
	return nil
}
