package start

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

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

// MaxInvalid bounds the invalid items of a run: beyond it the input as such is wrong.
const MaxInvalid = 100_000

const maxInvalidReason = 500

type invalidItem struct {
	ordinal int
	reason  string
}

func (l *loader) reject(item *LoadItem) error {
	item.Invalid = pg.Plain(item.Invalid[:min(len(item.Invalid), maxInvalidReason)])
	if l.refused == 0 {
		l.first = item.Invalid
	}
	if l.refused++; l.refused > MaxInvalid {
		return workqueue.BadSetting("more than %d items do not fit the schema, the first because of this: %s. Nothing was "+
			"started; have such items refused, to see where they are (on_invalid: reject), and fix the input", MaxInvalid,
			l.first)
	}
	return nil
}

const (
	// insertInvalidSlices inserts the slices that the errors of invalid items belong to. They are never sent.
	insertInvalidSlices = `
INSERT INTO work_slice (id, run_id, step, block, generation, mask, state, attempt, cause, root, error_code,
                        error_message, error_retry, ended_at, failed_items)
SELECT u.id, $1, u.step, u.block, 1, u.mask, 'cancelled', 1, 'ready', u.id, $2,
       'the items do not fit the schema of the run', false, tranche_now(), bit_count(u.mask)
FROM unnest($3::uuid[], $4::smallint[], $5::int[], $6::bit(8192)[]) AS u (id, step, block, mask)`

	insertInvalidParts = `
INSERT INTO work_result (run_id, slice_id, ordinal, generation, step, error_code, error_message, error_keyed)
SELECT p.run_id, p.slice, p.ordinal, 1, $2, $3, p.error_message, ` + plane.ErrorKeyed + `
FROM (SELECT $1::uuid AS run_id, *
    FROM unnest($4::uuid[], $5::int[], $6::text[]) AS u (slice, ordinal, error_message)) p
` + plane.KeyOfPart

	// failInvalid fails invalid items at steps that need no other, and skips them at later ones. The blocks are new.
	failInvalid = `
UPDATE work_block b
SET ready = b.ready & ~u.mask, held = nullif(b.held & ~u.mask, B'0'::bit(8192)),
    failed = CASE WHEN st.needs = '{}' THEN u.mask ELSE b.failed END,
    invalid = CASE WHEN st.needs = '{}' THEN u.mask END,
    skipped = CASE WHEN st.needs <> '{}' THEN u.mask END
FROM unnest($2::int[], $3::bit(8192)[]) AS u (block, mask), run_step st
WHERE b.run_id = $1 AND b.block = u.block AND st.run_id = b.run_id AND st.step = b.step`
)

// failInvalid ends the invalid items of a run that is being sealed, and the run if it has no others.
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

// duplicateInBatchError means that the key index refused a batch. The key is found afterwards.
type duplicateInBatchError struct {
	batch *itemBatch
	cause error
}

func (e *duplicateInBatchError) Error() string { return "duplicate key: " + e.cause.Error() }
func (e *duplicateInBatchError) Unwrap() error { return e.cause }

const knownKeys = `
SELECT item_key, ordinal FROM work_queue WHERE run_id = $1 AND item_key = ANY($2)`

func (l *loader) known(ctx context.Context, q pg.Querier, b *itemBatch) (map[string]int, error) {
	found := map[string]int{}
	var key string
	var ordinal int
	err := pg.Each(pg.Rows(ctx, q, knownKeys, l.run, b.keys()), []any{&key, &ordinal}, func() {
		found[key] = ordinal
	})
	if err != nil {
		return nil, fmt.Errorf("find known keys: %w", err)
	}
	return found, nil
}

func (l *loader) skipKnown(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	known, err := l.known(ctx, tx, b)
	if err != nil {
		return err
	}
	kept := b.rows[:0]
	for _, row := range b.rows {
		key := string(b.key(row))
		if _, twice := known[key]; twice {
			b.skipped++
			continue
		}
		known[key] = 0
		kept = append(kept, row)
	}
	b.rows = kept
	return nil
}

func (l *loader) explain(ctx context.Context, from pg.Querier, err error) error {
	var dup *duplicateInBatchError
	if !errors.As(err, &dup) {
		return err
	}
	first, lookupErr := l.known(ctx, from, dup.batch)
	if lookupErr != nil {
		return errors.Join(err, lookupErr)
	}
	for i, row := range dup.batch.rows {
		key := string(dup.batch.key(row))
		ordinal := dup.batch.base + i
		if at, twice := first[key]; twice && at != ordinal {
			// Batches are written concurrently, so the refused one may be the earlier of the two.
			lo, hi := min(at, ordinal), max(at, ordinal)
			return &workqueue.DuplicateKeyError{Key: key, First: workqueue.Ordinal(lo), Second: workqueue.Ordinal(hi),
				FirstLine: l.lineOf(dup.batch, lo), SecondLine: l.lineOf(dup.batch, hi), Unit: l.req.Unit}
		}
		first[key] = ordinal
	}
	return err
}

func (l *loader) lineOf(b *itemBatch, ordinal int) int {
	if i := ordinal - b.base; i >= 0 && i < len(b.rows) {
		return b.rows[i].line
	}
	return l.lines.line(ordinal)
}

// lineIndex maps items to source lines. It stores only where the distance between line and ordinal changes; of these
// a plain file has one; a file with very many loses line numbers, not correctness.
type lineIndex struct {
	at    []int // ordinals, ascending
	shift []int // line - ordinal from there
}

const maxLineShifts = 1 << 16

func (x *lineIndex) add(ordinal, line int) {
	n := len(x.at)
	if line == 0 || n >= maxLineShifts || n > 0 && x.shift[n-1] == line-ordinal {
		return
	}
	x.at, x.shift = append(x.at, ordinal), append(x.shift, line-ordinal)
}

func (x *lineIndex) line(ordinal int) int {
	i := sort.SearchInts(x.at, ordinal+1) - 1
	if i < 0 || len(x.at) >= maxLineShifts {
		return 0
	}
	return ordinal + x.shift[i]
}
