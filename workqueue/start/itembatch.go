package start

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	batchRows  = 4 * bitfield.Size
	batchBytes = 8 << 20
)

// itemBatch holds items on their way into work_queue: a few blocks of them, in one piece of memory.
type itemBatch struct {
	base    int // ordinal of the first
	rows    []itemRow
	arena   []byte
	skipped int64 // duplicates taken out of it
	copy    pg.CopyRows
}

// itemRow is an item in the arena: the key from start to mid, the payload from mid to end.
type itemRow struct {
	start, mid, end, line int
	lane                  int64  // that it stands in, if the run has lanes
	invalid               string // why it has failed already; empty: it has not
}

func (b *itemBatch) reset(base int) {
	b.base, b.rows, b.arena, b.skipped = base, b.rows[:0], b.arena[:0], 0
}

func (b *itemBatch) full() bool { return len(b.rows) >= batchRows || len(b.arena) >= batchBytes }

func (b *itemBatch) add(item *LoadItem, lane int64) {
	row := itemRow{start: len(b.arena), line: item.Line, lane: lane, invalid: item.Invalid}
	b.arena = append(b.arena, item.Key...)
	row.mid = len(b.arena)
	b.arena = append(b.arena, item.Payload...)
	row.end = len(b.arena)
	b.rows = append(b.rows, row)
}

func (b *itemBatch) key(row itemRow) []byte     { return b.arena[row.start:row.mid] }
func (b *itemBatch) payload(row itemRow) []byte { return b.arena[row.mid:row.end] }

func (b *itemBatch) keys() []string {
	keys := make([]string, len(b.rows))
	for i, row := range b.rows {
		keys[i] = string(b.key(row))
	}
	return keys
}

const (
	copyItems = `COPY work_queue (run_id, ordinal, twin, item_key, payload) FROM STDIN (FORMAT binary)`

	// insertItems is for a few: it need not travel alone, as a COPY does.
	insertItems = `
INSERT INTO work_queue (run_id, ordinal, twin, item_key, payload)
SELECT u.run, u.ordinal, u.twin, u.key, u.payload
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::text[]) AS u (run, ordinal, twin, key, payload)`
)

// put writes a batch into work_queue. With DuplicateSkip it first drops the items whose keys are known, and gives the
// others the ordinals that follow what is written.
func (l *loader) put(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	if l.req.OnDuplicate == DuplicateSkip {
		if err := l.skipKnown(ctx, tx, b); err != nil {
			return err
		}
		b.base = int(l.items)
	}
	if l.whole && pg.Few(len(b.rows), len(b.arena)) {
		if err := l.insert(ctx, tx, b); err != nil {
			return err
		}
	} else if err := l.copy(ctx, tx, b); err != nil {
		return err
	}
	if l.req.Order != nil {
		return l.putLanes(ctx, tx, b)
	}
	return nil
}

// insert leaves a few items to the next statement; see [itemBatch.refused] for what becomes of duplicates.
func (l *loader) insert(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	ordinals, twins := make([]int32, len(b.rows)), make([]int32, len(b.rows))
	keys, payloads := b.keys(), make([]string, len(b.rows))
	for i, row := range b.rows {
		ordinals[i], payloads[i] = int32(b.base+i), string(b.payload(row))
		if l.req.OnDuplicate == DuplicateAllow {
			twins[i] = ordinals[i]
		}
	}
	return pg.JoinOne(ctx, tx, insertItems, slices.Repeat([]workqueue.RunID{l.run}, len(b.rows)), ordinals, twins, keys,
		payloads)
}

// refused says of an error that it was the key index which refused the batch, if it was.
func (b *itemBatch) refused(err error) error {
	if pg.IsUniqueViolation(err, "work_queue_key") {
		return &duplicateInBatchError{batch: b, cause: err}
	}
	return err
}

func (l *loader) copy(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	b.copy.Reset()
	for i, row := range b.rows {
		ordinal := int32(b.base + i)
		twin := int32(0)
		if l.req.OnDuplicate == DuplicateAllow {
			twin = ordinal
		}
		b.copy.Row(5)
		b.copy.UUID(l.run)
		b.copy.Int4(ordinal)
		b.copy.Int4(twin)
		b.copy.Bytes(b.key(row))
		b.copy.Bytes(b.payload(row))
	}
	if err := b.copy.Send(ctx, tx, copyItems); err != nil {
		return b.refused(fmt.Errorf("write items %d to %d: %w", b.base, b.base+len(b.rows)-1, err))
	}
	return nil
}
