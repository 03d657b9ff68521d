package start

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// OnDuplicate says what intake does with an item whose key the run already has.
type OnDuplicate string

// What to do with duplicates.
const (
	DuplicateError OnDuplicate = "error" // refuse the whole run
	DuplicateSkip  OnDuplicate = "skip"  // keep the first, count the others
	DuplicateAllow OnDuplicate = "allow" // they are items of their own
)

// LoadRequest describes a run to be made.
type LoadRequest struct {
	Name              string // may be empty; need not be unique
	Plan              string
	Spec              json.RawMessage   // the plan in full, kept as it is
	Params            map[string]string // reach the service with every request; at most MaxParamBytes as JSON
	Priority          int
	Steps             []workqueue.StepSpec
	OnDuplicate       OnDuplicate // empty: DuplicateError
	Source            string      // where the items come from, for people
	Unit              string      // what LoadItem.Line counts, for errors; empty: lines
	CreatedBy         string
	IdempotencyKey    string              // empty: none
	Session           workqueue.SessionID // the node that loads; should it die, the half-made run is cleared away
	PlanVersion       int                 // of a plan on record; 0: the plan came with the run
	DoneBy            *time.Time          // when it is to have ended; nil: whenever
	Gentle            bool                // no more of it is in flight than that needs
	MaxFailed         string              // how many failed items hold the run: "", "500" or "1%"
	Canary            int                 // items that are tried before all others; 0: none
	FailFast          workqueue.FailFast  // of the first outcomes of each step, when they hold the run; zero: never
	CanaryAutoApprove bool                // go on without an operator when no more of them failed than MaxFailed allows
	FromRun           workqueue.RunID     // that it carries on; zero: none
	FromErased        int                 // [Store.Erasures] of that run before the first item was read
	Content           *Content            // what an idempotency key stands for; nil: that is in the key
	Order             *workqueue.RunOrder // items of the same value go one at a time; nil: all of them side by side

	// Sealing is the last that is done in the transaction that sets the run going; an error undoes it. See
	// schedule.OfFire.
	Sealing func(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error
}

// LoadItem is one item on its way in. Next fills it; its memory may be used again by the following call.
type LoadItem struct {
	Key     string
	Payload []byte // a JSON value in UTF-8 without NUL
	Line    int    // where it stands in its source, for errors; 0 when it has no line
	Invalid string // it fails with CodeInvalid and this reason, and no one is asked about it; of loads without an order
}

// Loaded is the outcome of a load.
type Loaded struct {
	Run      workqueue.RunID
	Items    int64
	Skipped  int64 // duplicates left out
	Invalid  int64 // of the items, those that have failed already
	Existing bool  // the idempotency key was known: this is the run that was made with it

	Completions []settle.Completion // of the run, when none of its items is left to be worked on
}

// maxItems is the largest number of items in a run: ordinals are 31 bits, and whole blocks.
const maxItems = math.MaxInt32 / bitfield.Size * bitfield.Size

// Load makes a run of the items that next yields until io.EOF, and sets it going. It streams: its memory does not grow
// with the number of items. It is all or nothing: after an error there is no run, and no item of it. A load of up to
// one batch is a single transaction; a larger one shows as a run in state "loading" until it is sealed.
func (s Store) Load(ctx context.Context, req LoadRequest, next func(*LoadItem) error) (Loaded, error) {
	if req.OnDuplicate == "" {
		req.OnDuplicate = DuplicateError
	}
	if err := req.validate(); err != nil {
		return Loaded{}, err
	}
	l := &loader{store: s.db, req: req, run: workqueue.NewRunID(), next: next}
	l.digestItems()
	if known, err := s.byIdempotencyKey(ctx, l); err != nil || known.Existing {
		return known, err
	}
	out, err := l.load(ctx)
	if pg.IsUniqueViolation(err, "batchrun_idempotency_key_key") { // another load with the key was faster
		known, err := s.byIdempotencyKey(ctx, l)
		if err == nil && !known.Existing {
			err = fmt.Errorf("load run: another load with idempotency key %q failed just now; start again",
				req.IdempotencyKey)
		}
		return known, err
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("load run: %w", err)
	}
	return out, nil
}

func (r *LoadRequest) validate() error {
	switch {
	case len(r.Steps) == 0 || len(r.Steps) > workqueue.MaxSteps:
		return fmt.Errorf("load run: %d steps; a run has 1 to %d", len(r.Steps), workqueue.MaxSteps)
	case r.Plan == "":
		return errors.New("load run: the plan has no name")
	}
	for i := range r.Steps {
		if err := r.Steps[i].Validate(i); err != nil {
			return fmt.Errorf("load run: %w", err)
		}
	}
	if err := r.checkOrder(); err != nil {
		return fmt.Errorf("load run: %w", err)
	}
	switch r.OnDuplicate {
	case DuplicateError, DuplicateSkip, DuplicateAllow:
		return validateParams(r.Params)
	default:
		return fmt.Errorf("load run: on duplicate %q is none of error, skip, allow", r.OnDuplicate)
	}
}

// spec and params are what is stored: never NULL.
func (r *LoadRequest) spec() json.RawMessage {
	if r.Spec == nil {
		return json.RawMessage("{}")
	}
	return r.Spec
}

func (r *LoadRequest) params() map[string]string {
	if r.Params == nil {
		return map[string]string{}
	}
	return r.Params
}

// MaxParamBytes is how much the parameters of a run may take as JSON: every request of the run carries them.
const MaxParamBytes = 16 << 10

func validateParams(params map[string]string) error {
	size := len("{}")
	for name, value := range params {
		if !pg.Storable(name) || !pg.Storable(value) {
			return &workqueue.ParamsError{Detail: fmt.Sprintf("parameter %.80q is not text that PostgreSQL can store: "+
				"leave out NUL and what is not UTF-8", name)}
		}
		pair, err := json.Marshal([2]string{name, value})
		if err != nil {
			return fmt.Errorf("write parameter %.80q: %w", name, err)
		}
		size += len(pair) + 1 // PostgreSQL writes "name": "value", with both spaces
	}
	if size > MaxParamBytes {
		return &workqueue.ParamsError{Detail: fmt.Sprintf(
			"the parameters of the run take %d bytes as JSON, and %d are allowed: "+
				"make them shorter, or put what is large where the service can read it and pass its name", size, MaxParamBytes)}
	}
	return nil
}

const runByIdempotencyKey = `
SELECT id, items, skipped, sealed_at IS NULL AND NOT opened, opened FROM batchrun WHERE idempotency_key = $1`

func (s Store) byIdempotencyKey(ctx context.Context, l *loader) (Loaded, error) {
	req := &l.req
	if req.IdempotencyKey == "" {
		return Loaded{}, nil
	}
	asking, cancel := context.WithTimeout(ctx, database.TxTimeout) // a leader that starts runs has no time limit
	defer cancel()
	out := Loaded{Existing: true}
	var unsealed, opened bool
	err := s.db.Pool.QueryRow(asking, runByIdempotencyKey, req.IdempotencyKey).
		Scan(&out.Run, &out.Items, &out.Skipped, &unsealed, &opened)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Loaded{}, nil
	case err != nil:
		return Loaded{}, fmt.Errorf("look up idempotency key %q: %w", req.IdempotencyKey, err)
	case unsealed: // still loading, or being taken back after a load that failed
		return Loaded{}, &workqueue.StateError{Run: out.Run, State: "loading",
			Op:  "start again with the same idempotency key",
			Fix: "wait until it has loaded or is gone, then ask again"}
	case opened:
		return Loaded{}, &workqueue.StateError{Run: out.Run, State: "a run that was opened",
			Op: fmt.Sprintf("use idempotency key %q for", req.IdempotencyKey), Fix: "use another key for another run"}
	}
	return l.compare(asking, out)
}

const specOfRun = `SELECT spec FROM batchrun WHERE id = $1`

// Spec returns the plan that a run was started with, as it was given. The error wraps ErrNotFound when there is no such
// run.
func (s Store) Spec(ctx context.Context, run workqueue.RunID) (spec json.RawMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	err = s.db.Pool.QueryRow(ctx, specOfRun, run).Scan(&spec)
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read the plan of run %s: %w", run, err)
	}
	return spec, nil
}

const planByIdempotencyKey = `
SELECT plan, coalesce(plan_version, 0) FROM batchrun WHERE idempotency_key = $1`

// KeyedPlan returns the plan of the run that was started with an idempotency key, and its version on record; 0 when it
// came with the run. The error wraps ErrNotFound when there is no such run.
func (s Store) KeyedPlan(ctx context.Context, key string) (plan string, version int, err error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	err = s.db.Pool.QueryRow(ctx, planByIdempotencyKey, key).Scan(&plan, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return "", 0, fmt.Errorf("look up idempotency key %q: %w", key, err)
	}
	return plan, version, nil
}

// maxTriedFirst is how many items a load that is only tried shows.
const maxTriedFirst = 10

// Tried is what a load would make.
type Tried struct {
	Loaded             // Run is set only when Existing
	Bytes  int64       // of the payloads
	First  []TriedItem // ten at most
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
