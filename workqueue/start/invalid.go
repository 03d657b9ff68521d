package start

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// MaxInvalid is how many items of a run may be invalid: where it is more, it is the input that is.
const MaxInvalid = 100_000

// maxInvalidReason bounds what is kept of what is wrong with one, in bytes.
const maxInvalidReason = 500

// TooManyInvalidError is returned for a load of more invalid items than a run may have.
type TooManyInvalidError struct{ First string } // what is wrong with the first

func (e *TooManyInvalidError) Error() string {
	return fmt.Sprintf("more than %d items do not fit the schema, the first because of this: %s. Nothing was started; "+
		"have such items refused, to see where they are (invalid=refuse), and mend the input", MaxInvalid, e.First)
}

// invalidItem is an item that fails with the seal: nobody is asked about it.
type invalidItem struct {
	ordinal int
	reason  string
}

// reject counts an item that is invalid, and shortens why.
func (l *loader) reject(item *LoadItem) error {
	item.Invalid = pg.Plain(item.Invalid[:min(len(item.Invalid), maxInvalidReason)])
	if l.refused == 0 {
		l.first = item.Invalid
	}
	if l.refused++; l.refused > MaxInvalid {
		return &TooManyInvalidError{First: l.first}
	}
	return nil
}

const (
	// insertInvalidSlices makes the slices that the errors of invalid items belong to. They were never to go anywhere.
	insertInvalidSlices = `
INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, root, error_code,
                        error_message, error_retry, ended_at)
SELECT u.id, $1, u.step, u.block, 1, u.mask, B'0'::bit(8192), 'cancelled', 1, 'ready', u.id, $2,
       'the items do not fit the schema of the run', false, tranche_now()
FROM unnest($3::uuid[], $4::smallint[], $5::int[], $6::bit(8192)[]) AS u (id, step, block, mask)`

	insertInvalidParts = `
INSERT INTO work_part (run_id, slice_id, ordinal, generation, step, error_code, error_message, error_keyed)
SELECT p.run_id, p.slice, p.ordinal, 1, $2, $3, p.error_message, ` + plane.ErrorKeyed + `
FROM (SELECT $1::uuid AS run_id, *
    FROM unnest($4::uuid[], $5::int[], $6::text[]) AS u (slice, ordinal, error_message)) p
` + plane.KeyOfPart

	// failInvalid fails invalid items where a step needs no other, and leaves them out of the steps after those. The
	// blocks are new: nobody else knows of them.
	failInvalid = `
UPDATE work_block b
SET ready = b.ready & ~u.mask, held = nullif(b.held & ~u.mask, B'0'::bit(8192)),
    failed = CASE WHEN st.needs = '{}' THEN u.mask ELSE b.failed END,
    invalid = CASE WHEN st.needs = '{}' THEN u.mask END,
    skipped = CASE WHEN st.needs <> '{}' THEN u.mask END
FROM unnest($2::int[], $3::bit(8192)[]) AS u (block, mask), run_step st
WHERE b.run_id = $1 AND b.block = u.block AND st.run_id = b.run_id AND st.step = b.step`
)

// failInvalid ends the invalid items of a run that is just being sealed, and the run when it has no others.
func (l *loader) failInvalid(ctx context.Context, tx pgx.Tx) error {
	if len(l.invalid) == 0 {
		return nil
	}
	var blocks []workqueue.Block
	var masks []bitfield.Set
	for _, item := range l.invalid {
		block, bit := workqueue.Ordinal(item.ordinal).Block()
		if n := len(blocks); n == 0 || blocks[n-1] != block {
			blocks, masks = append(blocks, block), append(masks, bitfield.Set{})
		}
		masks[len(masks)-1].Add(bit)
	}
	for i := range l.req.Steps {
		if len(l.req.Steps[i].Needs) == 0 {
			if err := l.writeInvalid(ctx, tx, workqueue.Step(i), blocks, masks); err != nil {
				return fmt.Errorf("write %d invalid items: %w", len(l.invalid), err)
			}
		}
	}
	if _, err := tx.Exec(ctx, failInvalid, l.run, blocks, pgbits.Slice(masks)); err != nil {
		return fmt.Errorf("fail %d invalid items: %w", len(l.invalid), err)
	}
	acks := make([]tracker.Ack, len(blocks))
	for i, block := range blocks {
		acks[i] = tracker.Ack{Group: int(block), Mask: masks[i]}
	}
	var acked tracker.Acked
	batch := &pgx.Batch{}
	if err := tracker.QueueAck(batch, uuid.UUID(l.run), acks, &acked); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("acknowledge %d invalid items: %w", len(l.invalid), err)
	}
	if !acked.Completed {
		return nil
	}
	var err error
	l.completions, err = settle.Complete(ctx, tx, l.run)
	return err
}

// writeInvalid writes slices and parts of a step. The items are in the order of their ordinals.
func (l *loader) writeInvalid(ctx context.Context, tx pgx.Tx, step workqueue.Step, blocks []workqueue.Block,
	masks []bitfield.Set,
) error {
	ids := make([]workqueue.SliceID, len(blocks))
	for i := range ids {
		ids[i] = workqueue.NewSliceID()
	}
	steps := slices.Repeat([]workqueue.Step{step}, len(blocks))
	_, err := tx.Exec(ctx, insertInvalidSlices, l.run, workqueue.CodeInvalid, ids, steps, blocks, pgbits.Slice(masks))
	if err != nil {
		return err
	}
	n := len(l.invalid)
	of, ordinals, reasons := make([]workqueue.SliceID, n), make([]int32, n), make([]string, n)
	at := 0
	for i, item := range l.invalid {
		for block, _ := workqueue.Ordinal(item.ordinal).Block(); blocks[at] != block; {
			at++
		}
		of[i], ordinals[i], reasons[i] = ids[at], int32(item.ordinal), item.reason
	}
	_, err = tx.Exec(ctx, insertInvalidParts, l.run, step, workqueue.CodeInvalid, of, ordinals, reasons)
	return err
}
