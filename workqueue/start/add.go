package start

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Bounds of one add, which is one transaction.
const (
	MaxAddItems    = 1_000_000
	MaxAddBytes    = 256 << 20 // of keys and payloads
	MaxAddKeyBytes = 500       // of its idempotency key
)

// AddRequest is a list of items for an open run.
type AddRequest struct {
	Run    workqueue.RunID
	Key    string // idempotency key: repeating it with the same items returns the first answer; empty: none
	Digest []byte // of the submitted items, if there is a key
	Actor  string
	Unit   string // what LoadItem.Line counts, for errors; empty: lines
	// Items yields the items from the first until io.EOF, each time it is called: a transaction may be retried.
	Items func() (next func(*LoadItem) error, err error)
}

// Added is the outcome of an add.
type Added struct {
	Run      workqueue.RunID   `json:"run"`
	First    workqueue.Ordinal `json:"first" doc:"the ordinal of the first added item; the rest follow it"`
	Items    int64             `json:"items" doc:"that were added"`
	Skipped  int64             `json:"skipped" doc:"duplicates that were left out"`
	Total    int64             `json:"total" doc:"items of the run"`
	Existing bool              `json:"existing" doc:"the idempotency key was used before, for the same items"`
}

const (
	addByKey = `SELECT digest, ordinal, items, skipped FROM run_add WHERE run_id = $1 AND key = $2`

	insertAdd = `INSERT INTO run_add (run_id, key, digest, ordinal, items, skipped) VALUES ($1, $2, $3, $4, $5, $6)`

	// The last check: a run that was cancelled meanwhile takes nothing.
	growRun = `
UPDATE batchrun SET items = $2, skipped = $3 WHERE id = $1 AND opened AND state = 'running' AND sealed_at IS NULL`
)

// Add appends items to an open run in one transaction: all of them or none. Adds of one run are serialized. Blocks
// that are now full become ready; other items wait for a later add or the seal.
func (s Store) Add(ctx context.Context, req AddRequest) (Added, error) {
	if len(req.Key) > MaxAddKeyBytes || !pg.Storable(req.Key) {
		return Added{}, workqueue.BadSetting("idempotency key %.80q: it must be text of at most %d bytes, without NUL",
			req.Key, MaxAddKeyBytes)
	}
	a := &adder{}
	err := s.db.InTxWithin(ctx, database.LoadTimeout, func(ctx context.Context, tx pgx.Tx) error {
		*a = adder{AddRequest: req, l: &loader{store: s.db, run: req.Run}}
		return a.run(ctx, tx)
	})
	if err != nil {
		return Added{}, fmt.Errorf("add to run %s: %w", req.Run, a.explain(ctx, err))
	}
	return a.out, nil
}

// adder is one add in progress. It uses the loader for batches of items.
type adder struct {
	AddRequest

	l    *loader
	open *openState
	out  Added
	size int64 // of keys and payloads
}

func (a *adder) run(ctx context.Context, tx pgx.Tx) (err error) {
	const op = "add items to"
	if a.open, err = holdOpen(ctx, tx, a.Run, op); err != nil {
		return err
	}
	if known, err := a.known(ctx, tx); err != nil || known {
		return err
	}
	switch {
	case a.open.state == "cancelled":
		return a.open.cancelled(op)
	case a.open.sealedAt != nil:
		return &workqueue.StateError{Run: a.Run, State: "sealed", Op: op, Fix: "open a new run for more items"}
	}
	a.l.items, a.l.req.OnDuplicate = a.open.items, a.open.onDuplicate
	a.l.req.Unit, a.l.req.Order = a.Unit, a.open.order
	if err := a.put(ctx, tx); err != nil {
		return err
	}
	full := func(items int64) int64 { return items / bitfield.Size * bitfield.Size }
	if err := a.open.fill(ctx, tx, full(a.open.items), full(a.l.items)); err != nil {
		return err
	}
	return a.note(ctx, tx)
}

// known answers a repeated add, even after the seal: the first answer may have been lost.
func (a *adder) known(ctx context.Context, tx pgx.Tx) (bool, error) {
	if a.Key == "" {
		return false, nil
	}
	var digest []byte
	out := Added{Run: a.Run, Total: a.open.items, Existing: true}
	err := tx.QueryRow(ctx, addByKey, a.Run, a.Key).Scan(&digest, &out.First, &out.Items, &out.Skipped)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up idempotency key %q: %w", a.Key, err)
	case !bytes.Equal(digest, a.Digest):
		return false, workqueue.Conflict("run %s has an add with idempotency key %.80q already, of other items; nothing was "+
			"added. Use a different key for each list of items", a.Run, a.Key)
	}
	a.out = out
	return true, nil
}

func (a *adder) put(ctx context.Context, tx pgx.Tx) error {
	next, err := a.Items()
	if err != nil {
		return err
	}
	a.l.next = a.counted(next)
	b := &itemBatch{}
	for more := true; more; {
		b.reset(int(a.l.items))
		_, err := a.l.fill(b)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		more = err == nil
		if len(b.rows) == 0 {
			continue
		}
		if err := a.l.put(ctx, tx, b); err != nil {
			return err
		}
		for i := range b.rows {
			a.l.lines.add(b.base+i, b.rows[i].line)
		}
		a.l.items += int64(len(b.rows))
		a.l.skipped += b.skipped
	}
	return nil
}

func (a *adder) counted(next func(*LoadItem) error) func(*LoadItem) error {
	const tooLarge = "more than %v %s in one add; nothing was added. Send them in several adds"
	items := 0
	return func(item *LoadItem) error {
		if err := next(item); err != nil {
			return err
		}
		if items++; items > MaxAddItems {
			return workqueue.TooLarge(tooLarge, control.Grouped(MaxAddItems), "items")
		}
		if a.size += int64(len(item.Key) + len(item.Payload)); a.size > MaxAddBytes {
			return workqueue.TooLarge(tooLarge, MaxAddBytes>>20, "MiB of keys and payloads")
		}
		return nil
	}
}

func (a *adder) note(ctx context.Context, tx pgx.Tx) error {
	a.out = Added{Run: a.Run, First: workqueue.Ordinal(a.open.items), Items: a.l.items - a.open.items,
		Skipped: a.l.skipped,
		Total:   a.l.items}
	tag, err := tx.Exec(ctx, growRun, a.Run, a.l.items, a.open.skipped+a.l.skipped)
	if err != nil {
		return fmt.Errorf("count the items of run %s: %w", a.Run, err)
	}
	if tag.RowsAffected() != 1 {
		return a.open.cancelled("add items to")
	}
	if a.Key != "" {
		_, err := tx.Exec(ctx, insertAdd, a.Run, a.Key, a.Digest, a.out.First, a.out.Items, a.out.Skipped)
		if err != nil {
			return fmt.Errorf("keep idempotency key %q: %w", a.Key, err)
		}
	}
	after := map[string]any{"items": a.out.Total, "added": a.out.Items, "skipped": a.out.Skipped}
	if a.Key != "" {
		after["idempotency_key"] = pg.Plain(a.Key)
	}
	return ledger.AuditChange(ctx, tx, ledger.Action{Actor: a.Actor, Name: "add", Run: a.Run,
		Before: map[string]any{"items": a.open.items}, After: after})
}

// explain turns a duplicate key into an error with both places, searching the source for earlier batches.
func (a *adder) explain(ctx context.Context, err error) error {
	dup, ok := errors.AsType[*duplicateInBatchError](err)
	if !ok {
		return err
	}
	err = a.l.explain(ctx, a.l.store.Pool, err)
	if _, unknown := errors.AsType[*duplicateInBatchError](err); !unknown {
		return err
	}
	places := make(map[string]int, len(dup.batch.rows))
	for i, row := range dup.batch.rows {
		places[string(dup.batch.key(row))] = i
	}
	next, failed := a.Items()
	for ordinal := int(a.open.items); failed == nil && ordinal < dup.batch.base; ordinal++ {
		var item LoadItem
		if failed = next(&item); failed != nil {
			break
		}
		if i, twice := places[item.Key]; twice {
			return &workqueue.DuplicateKeyError{Key: item.Key, First: workqueue.Ordinal(ordinal),
				Second:    workqueue.Ordinal(dup.batch.base + i),
				FirstLine: item.Line, SecondLine: dup.batch.rows[i].line, Unit: a.Unit}
		}
	}
	return errors.Join(err, failed)
}
