package start

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// openState is an open run as whoever holds its gate finds it: nobody else adds items to it or seals it meanwhile.
type openState struct {
	id          workqueue.RunID
	state       string
	generation  workqueue.Generation
	items       int64
	skipped     int64
	maxFailed   string
	onDuplicate OnDuplicate
	sealedAt    *time.Time
	order       *workqueue.RunOrder // nil: its items go side by side
}

const (
	// holdGate comes before every other lock of an add or a seal. Nobody else takes it.
	holdGate = `SELECT 1 FROM run_add WHERE run_id = $1 AND key = '' FOR NO KEY UPDATE`

	// Without a lock: a run that is cancelled just now is found out by the conditional UPDATE at the end.
	readOpen = `
SELECT state, generation, items, skipped, max_failed, on_duplicate, sealed_at, opened FROM batchrun WHERE id = $1`
)

// holdOpen takes the gate of a run and reads the run behind it. A run that was not opened is a *StateError.
func holdOpen(ctx context.Context, tx pgx.Tx, run workqueue.RunID, op string) (*openState, error) {
	if _, err := tx.Exec(ctx, holdGate, run); err != nil {
		return nil, fmt.Errorf("hold the gate of run %s: %w", run, err)
	}
	o := &openState{id: run}
	var opened bool
	err := tx.QueryRow(ctx, readOpen, run).Scan(&o.state, &o.generation, &o.items, &o.skipped, &o.maxFailed,
		&o.onDuplicate, &o.sealedAt, &opened)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("run %s: %w", run, workqueue.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("read run %s: %w", run, err)
	case !opened:
		return nil, &workqueue.StateError{Run: run, State: "one that was started with all its items", Op: op,
			Fix: "only a run that was opened takes items later; open one with: tranche run open"}
	}
	o.order, err = OrderOf(ctx, tx, run)
	return o, err
}

// cancelled is the error for a run that takes nothing more because it was given up.
func (o *openState) cancelled(op string) error {
	return &workqueue.StateError{Run: o.id, State: "cancelled", Op: op, Fix: "open a new run"}
}

// blockBytes sums up payloads of items, by the primary key of work_queue.
const blockBytes = `
SELECT ordinal / 8192 AS block, sum(octet_length(payload))::bigint FROM work_queue
WHERE run_id = $1 AND ordinal >= $2 AND ordinal < $3 GROUP BY 1 ORDER BY 1`

// insertOpenBlocks makes blocks of every step, beginning with number $4. Items of a step that needs others wait: they
// are in no plane. The rows are new, so nobody waits for them; the foreign key holds the run's steps as they are.
const insertOpenBlocks = `
INSERT INTO work_block (run_id, step, block, size, payload_bytes, ready)
SELECT $1, st.step, $4::int + u.n - 1, u.size, u.bytes,
       CASE WHEN st.needs = '{}' THEN ~(~B'0'::bit(8192) >> u.size) ELSE B'0'::bit(8192) END
FROM run_step st, unnest($2::int[], $3::bigint[]) WITH ORDINALITY AS u (size, bytes, n)
WHERE st.run_id = $1
ORDER BY st.step, u.n`

// fill makes blocks, and groups of the tracker, of the items from ordinal from up to to, which starts a block, and ends
// one unless it is the end of the run.
func (o *openState) fill(ctx context.Context, tx pgx.Tx, from, to int64) error {
	if from == to {
		return nil
	}
	rows := pg.Rows(ctx, tx, blockBytes, o.id, from, to)
	first := int(from / bitfield.Size)
	var sizes []int
	var bytes []int64
	var block int
	var sum int64
	_, err := pgx.ForEachRow(rows, []any{&block, &sum}, func() error {
		sizes = append(sizes, int(min(bitfield.Size, to-int64(block)*bitfield.Size)))
		bytes = append(bytes, sum)
		return nil
	})
	if err == nil && int64(len(sizes)) != (to-from+bitfield.Size-1)/bitfield.Size {
		err = fmt.Errorf("items %d to %d lie in %d blocks: %w", from, to-1, len(sizes), workqueue.ErrFence)
	}
	if err != nil {
		return fmt.Errorf("sum up items %d to %d: %w", from, to-1, err)
	}
	if err := o.makeBlocks(ctx, tx, from, to, sizes, bytes); err != nil {
		return err
	}
	group, err := tracker.AddGroups(ctx, tx, uuid.UUID(o.id), sizes)
	if _, ended := errors.AsType[*tracker.StateError](err); ended {
		return o.cancelled("go on with")
	}
	if err == nil && group != first {
		err = fmt.Errorf("the tracker has %d groups before block %d: %w", group, first, workqueue.ErrFence)
	}
	return err
}

// makeBlocks makes blocks of items that are all ready, or of which the heads of lines are.
func (o *openState) makeBlocks(ctx context.Context, tx pgx.Tx, from, to int64, sizes []int, bytes []int64) error {
	first := workqueue.Block(from / bitfield.Size)
	if o.order == nil {
		if _, err := tx.Exec(ctx, insertOpenBlocks, o.id, sizes, bytes, first); err != nil {
			return fmt.Errorf("insert %d blocks: %w", len(sizes), err)
		}
		return nil
	}
	heads, err := headsFirst(ctx, tx, o.id, from, to)
	if err != nil {
		return err
	}
	ready, held := inLine(sizes, heads)
	return makeBlocks(ctx, tx, o.id, first, sizes, bytes, ready, held)
}
