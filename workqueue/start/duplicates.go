package start

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// duplicateInBatchError says that the key index refused a batch. Which key it was is found out afterwards.
type duplicateInBatchError struct {
	batch *itemBatch
	cause error
}

func (e *duplicateInBatchError) Error() string { return "duplicate key: " + e.cause.Error() }
func (e *duplicateInBatchError) Unwrap() error { return e.cause }

const knownKeys = `
SELECT item_key, ordinal FROM work_queue WHERE run_id = $1 AND item_key = ANY($2)`

// known returns which keys of the batch the run has already, with their ordinals.
func (l *loader) known(ctx context.Context, q interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, b *itemBatch,
) (map[string]int, error) {
	rows := pg.Rows(ctx, q, knownKeys, l.run, b.keys())
	found := map[string]int{}
	var key string
	var ordinal int
	_, err := pgx.ForEachRow(rows, []any{&key, &ordinal}, func() error {
		found[key] = ordinal
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for known keys: %w", err)
	}
	return found, nil
}

// skipKnown takes out of the batch every item whose key stands in the run or earlier in the batch.
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

// explain turns a batch that the key index refused into an error that names the key and both of its places.
func (l *loader) explain(ctx context.Context, err error) error {
	var dup *duplicateInBatchError
	if !errors.As(err, &dup) {
		return err
	}
	first, lookupErr := l.known(ctx, l.store.Pool, dup.batch)
	if lookupErr != nil {
		return errors.Join(err, lookupErr)
	}
	for i, row := range dup.batch.rows {
		key := string(dup.batch.key(row))
		ordinal := dup.batch.base + i
		if at, twice := first[key]; twice && at != ordinal {
			// Batches are written side by side, so the one that was refused may be the earlier of the two.
			lo, hi := min(at, ordinal), max(at, ordinal)
			return &workqueue.DuplicateKeyError{Key: key, First: workqueue.Ordinal(lo), Second: workqueue.Ordinal(hi),
				FirstLine: l.lineOf(dup.batch, lo), SecondLine: l.lineOf(dup.batch, hi), Unit: l.req.Unit}
		}
		first[key] = ordinal
	}
	return err
}

// lineOf returns the line of an item of a batch that was refused, or of one that was written before it.
func (l *loader) lineOf(b *itemBatch, ordinal int) int {
	if i := ordinal - b.base; i >= 0 && i < len(b.rows) {
		return b.rows[i].line
	}
	return l.lines.line(ordinal)
}

// lineIndex remembers on which line each item stood. It keeps only the places where the distance between line and
// ordinal changes, of which a plain file has one; a file with very many of them loses line numbers, not correctness.
type lineIndex struct {
	at    []int // ordinals, ascending
	shift []int // line - ordinal from there on
}

const maxLineShifts = 1 << 16

func (x *lineIndex) add(ordinal, line int) {
	n := len(x.at)
	if line == 0 || n >= maxLineShifts || n > 0 && x.shift[n-1] == line-ordinal {
		return
	}
	x.at, x.shift = append(x.at, ordinal), append(x.shift, line-ordinal)
}

// line returns the line of an item, or 0 when it is not known.
func (x *lineIndex) line(ordinal int) int {
	i := sort.SearchInts(x.at, ordinal+1) - 1
	if i < 0 || len(x.at) >= maxLineShifts {
		return 0
	}
	return ordinal + x.shift[i]
}
