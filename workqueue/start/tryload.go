package start

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// maxTriedFirst is how many items a load that is only tried shows.
const maxTriedFirst = 10

// Tried is what a load would make.
type Tried struct {
	Loaded             // Run is set only when Existing
	Bytes  int64       // of the payloads
	First  []TriedItem // ten at the most
	Steps  []TriedStep // in the order of the request; none when Existing
	Held   int64       // of the items, those that a canary would hold back at first
}

// TriedItem is one item.
type TriedItem struct {
	Key     string
	Payload []byte
	Line    int
}

// TriedStep is what a step would do for a run that a load would make.
type TriedStep struct {
	Chunk    int   // of the moment
	Requests int64 // by it; more when payloads are large
}

// TryLoad finds out what [Store.Load] would make of the same request, and stores nothing: it fails with the errors that
// Load fails with. The items are read to their end, in constant memory; keys that stand twice are looked for in a file
// in dir instead of the database. The run is made without its items, with all that the schema has to say about it, and
// rolled back. What others do meanwhile can make the outcome another: a run that takes the idempotency key, a service
// that learns to take larger chunks.
func (s Store) TryLoad(ctx context.Context, req LoadRequest, dir string, next func(*LoadItem) error) (Tried, error) {
	if req.OnDuplicate == "" {
		req.OnDuplicate = DuplicateError
	}
	if err := req.validate(); err != nil {
		return Tried{}, err
	}
	t := &trial{loader: loader{store: s.db, req: req, run: workqueue.NewRunID(), next: next}, keys: newKeyLog(dir)}
	t.digestItems()
	if known, err := s.byIdempotencyKey(ctx, &t.loader); err != nil || known.Existing {
		return Tried{Loaded: known}, errors.Join(err, t.keys.close())
	}
	err := errors.Join(t.read(), t.keys.close())
	if err == nil {
		err = t.rehearse(ctx)
	}
	if pg.IsUniqueViolation(err, "batchrun_idempotency_key_key") { // another load with the key was faster
		known, err := s.byIdempotencyKey(ctx, &t.loader)
		return Tried{Loaded: known}, err
	}
	if err != nil {
		return Tried{}, fmt.Errorf("load run: %w", err)
	}
	return t.out, nil
}

// trial is a load that is only tried.
type trial struct {
	loader

	keys *keyLog
	out  Tried
}

// read goes through the items as a load does.
func (t *trial) read() error {
	batch, ordinal := &itemBatch{}, 0
	for {
		_, err := t.fill(batch)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for _, row := range batch.rows {
			size := row.end - row.mid
			t.show(batch, row)
			t.out.Bytes += int64(size)
			if t.req.OnDuplicate != DuplicateAllow {
				if err := t.keys.add(keyEntry{batch.key(row), ordinal, row.line, size}); err != nil {
					return err
				}
			}
			ordinal++
		}
		if err != nil {
			break
		}
		batch.reset(ordinal)
	}
	return t.settle(int64(ordinal))
}

// show keeps the first items that are not left out.
func (t *trial) show(batch *itemBatch, row itemRow) {
	key := string(batch.key(row))
	known := func(i TriedItem) bool { return i.Key == key }
	if len(t.out.First) == maxTriedFirst ||
		t.req.OnDuplicate == DuplicateSkip && slices.ContainsFunc(t.out.First, known) {
		return
	}
	t.out.First = append(t.out.First, TriedItem{key, slices.Clone(batch.payload(row)), row.line})
}

// settle looks for keys that stand twice, and counts.
func (t *trial) settle(items int64) error {
	twins, err := t.keys.twins()
	if err != nil {
		return err
	}
	if t.req.OnDuplicate == DuplicateError && twins.first != nil {
		twins.first.Unit = t.req.Unit
		return twins.first
	}
	t.skipped, t.items = twins.items, items-twins.items
	t.out.Items, t.out.Skipped, t.out.Invalid = t.items, t.skipped, int64(t.refused)
	t.out.Bytes -= twins.bytes
	for rest := t.items; rest > 0; rest -= bitfield.Size { // which payloads stand in a block is of no matter here
		t.sizes = append(t.sizes, t.out.Bytes*min(rest, bitfield.Size)/t.items)
	}
	if t.sampled() {
		t.out.Held = t.items - int64(t.req.Canary)
	}
	return nil
}

// rehearse makes the run without its items, and takes it back.
func (t *trial) rehearse(ctx context.Context) error {
	return t.store.RedoOrTry(ctx, true, func(ctx context.Context, tx pgx.Tx) error {
		if err := t.insertRun(ctx, tx); err != nil {
			return err
		}
		if err := t.seal(ctx, tx); err != nil {
			return err
		}
		steps, err := control.LockSteps(ctx, tx, t.run)
		if err != nil {
			return err
		}
		t.out.Steps = make([]TriedStep, len(steps))
		for i := range steps {
			if t.out.Steps[i], err = t.step(ctx, tx, &steps[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// step counts the requests of a step: slices do not reach over the ends of blocks.
func (t *trial) step(ctx context.Context, tx pgx.Tx, step *control.StepSettings) (TriedStep, error) {
	chunk, err := control.ChunkOfMoment(ctx, tx, step)
	if err != nil {
		return TriedStep{}, err
	}
	if bytes := int64(step.ChunkBytes); bytes > 0 {
		chunk = min(chunk, max(1, int(bytes/(t.out.Bytes/max(t.items, 1)+plane.Envelope))))
	}
	out := TriedStep{Chunk: chunk}
	for rest := t.items; rest > 0; rest -= bitfield.Size {
		out.Requests += (min(rest, bitfield.Size) + int64(chunk) - 1) / int64(chunk)
	}
	return out, nil
}
