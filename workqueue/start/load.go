package start

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
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

// OnDuplicate is what intake does with an item whose key the run already has.
type OnDuplicate string

// What to do with duplicates.
const (
	DuplicateError OnDuplicate = "error" // refuse the whole run
	DuplicateSkip  OnDuplicate = "skip"  // keep the first, count the rest
	DuplicateAllow OnDuplicate = "allow" // load them as separate items
)

// LoadRequest describes a run to be loaded.
type LoadRequest struct {
	Name              string // may be empty; need not be unique
	Namespace         string // that owns it; empty: that of the context
	Plan              string
	Spec              json.RawMessage   // the complete plan, stored unchanged
	Params            map[string]string // sent to the service with every request; at most MaxParamBytes as JSON
	Priority          int
	Steps             []workqueue.StepSpec
	OnDuplicate       OnDuplicate // empty: DuplicateError
	Source            string      // where the items come from, for display
	Unit              string      // what LoadItem.Line counts, for errors; empty: lines
	CreatedBy         string
	IdempotencyKey    string              // empty: none
	Session           workqueue.SessionID // the loading node; if it dies, the partial run is deleted
	PlanVersion       int                 // of a saved plan; 0: the plan came with the run
	DoneBy            *time.Time          // its deadline; nil: none
	Gentle            bool                // only as many in flight as that needs
	MaxFailed         string              // failed items that hold the run: "", "500" or "1%"
	Canary            int                 // size of the sample tried before all other items; 0: none
	FailFast          workqueue.FailFast  // which first outcomes of a step hold the run; zero: none
	CanaryAutoApprove bool                // continue without approval if at most MaxFailed of the sample failed
	FromRun           workqueue.RunID     // the run that it continues; zero: none
	FromOutcome       workqueue.Outcome   // of the items that it takes: failed or missing; empty: both
	FromVersion       int                 // [Store.Version] of that run before its first item was read
	Content           *Content            // what an idempotency key identifies; nil: the key says it
	Order             *workqueue.RunOrder // items of the same value go one at a time; nil: all are independent

	// Sealing runs last in the transaction that starts the run; an error rolls it back. See schedule.OfOccurrence.
	Sealing func(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error
}

// LoadItem is one item to be loaded. Next fills it; the next call may reuse its memory.
type LoadItem struct {
	Key     string
	Payload []byte // a JSON value in UTF-8 without NUL
	Line    int    // position in its source, for errors; 0: unknown
	Invalid string // why it fails with CodeInvalid, without being sent; only in loads without an order
}

// Loaded is the outcome of a load.
type Loaded struct {
	Run      workqueue.RunID
	Items    int64
	Skipped  int64 // duplicates left out
	Invalid  int64 // items that have already failed
	Existing bool  // the idempotency key was known: this is its run

	// Of an existing run.
	Name        string
	PlanVersion int
	DoneBy      *time.Time

	Completions []settle.Completion // of the run, if no item has work left
}

// maxItems bounds the items of a run: ordinals have 31 bits, and blocks are whole.
const maxItems = math.MaxInt32 / bitfield.Size * bitfield.Size

// Load makes a run of the items that next yields until io.EOF, and starts it. Its memory does not grow with the
// number of items. It is all or nothing: after an error neither the run nor any item exists. A load of up to one
// batch is a single transaction; a larger one is visible in state "loading" until it is sealed.
func (s Store) Load(ctx context.Context, req LoadRequest, next func(*LoadItem) error) (Loaded, error) {
	l, known, err := s.prepare(ctx, s.db.Pool, req, next)
	if err != nil || known.Existing {
		return known, err
	}
	if err := s.checkDoneBy(ctx, &req); err != nil {
		return Loaded{}, err
	}
	out, err := l.load(ctx)
	if pg.IsUniqueViolation(err, "batchrun_idempotency_key_key") { // another load with the key was faster
		known, err := s.byIdempotencyKey(ctx, s.db.Pool, l)
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

// LoadTx is [Store.Load] within a caller's transaction: the run exists once that is committed. After an error nothing
// of it is left in the transaction, which can continue. Of two with the same idempotency key, the second waits.
func (s Store) LoadTx(ctx context.Context, tx pgx.Tx, req LoadRequest, next func(*LoadItem) error) (Loaded, error) {
	l, known, err := s.prepare(ctx, tx, req, next)
	if err != nil || known.Existing {
		return known, err
	}
	l.whole = true
	if err := s.checkDoneBy(ctx, &req); err != nil {
		return Loaded{}, err
	}
	err = l.makeOrNothing(ctx, tx)
	if pg.IsUniqueViolation(err, "batchrun_idempotency_key_key") {
		if known, err := s.byIdempotencyKey(ctx, tx, l); err != nil || known.Existing {
			return known, err
		}
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("load run: %w", err)
	}
	return Loaded{Run: l.run, Items: l.items, Skipped: l.skipped, Invalid: int64(len(l.invalid))}, nil
}

// prepare checks a request and makes its loader, or returns the run that its idempotency key has started.
func (s Store) prepare(ctx context.Context, from pg.RowQuerier, req LoadRequest, next func(*LoadItem) error,
) (*loader, Loaded, error) {
	req.Namespace = cmp.Or(req.Namespace, workqueue.Into(ctx))
	req.OnDuplicate = cmp.Or(req.OnDuplicate, DuplicateError)
	if err := req.validate(); err != nil {
		return nil, Loaded{}, err
	}
	l := &loader{store: s.db, req: req, run: workqueue.NewRunID(), next: next}
	if req.IdempotencyKey != "" && req.Content != nil && req.Content.Items {
		l.digest = &itemDigest{sum: sha256.New()}
	}
	known, err := s.byIdempotencyKey(ctx, from, l)
	return l, known, err
}

// makeOrNothing leaves nothing in tx after an error, also if ctx ended. If it cannot, tx cannot be committed.
func (l *loader) makeOrNothing(ctx context.Context, tx pgx.Tx) error {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if err = l.makeWithin(ctx, savepoint); err == nil {
		err = savepoint.Commit(ctx)
	}
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), database.TxTimeout)
	defer cancel()
	if undone := savepoint.Rollback(undo); undone != nil {
		return errors.Join(err, undone, tx.Conn().Close(undo))
	}
	return err
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
		return CheckParams(r.Params)
	default:
		return fmt.Errorf("load run: on duplicate %q is none of error, skip, allow", r.OnDuplicate)
	}
}

// checkDoneBy refuses a time that has passed. An occurrence of a schedule may start after its own.
func (s Store) checkDoneBy(ctx context.Context, r *LoadRequest) error {
	if r.Sealing != nil || r.DoneBy == nil {
		return nil
	}
	now, err := pg.Now(ctx, s.db.Pool)
	return cmp.Or(err, workqueue.CheckDoneBy(r.DoneBy, now))
}

// spec and params are never stored as NULL.
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

// MaxParamBytes bounds a run's parameters as JSON, since every request carries them.
const MaxParamBytes = 16 << 10

// CheckParams refuses parameters that are too large, or that PostgreSQL cannot store.
func CheckParams(params map[string]string) error {
	size := len("{}")
	for name, value := range params {
		if !pg.Storable(name) || !pg.Storable(value) {
			return workqueue.BadSetting("parameter %.80q is not text that PostgreSQL can store: leave out NUL and what is "+
				"not UTF-8", name)
		}
		pair, err := json.Marshal([2]string{name, value})
		if err != nil {
			return fmt.Errorf("write parameter %.80q: %w", name, err)
		}
		size += len(pair) + 1 // PostgreSQL writes "name": "value", with both spaces
	}
	if size > MaxParamBytes {
		return workqueue.BadSetting("the parameters of the run take %d bytes as JSON, and %d are allowed: make them "+
			"shorter, or put what is large where the service can read it and pass its name", size, MaxParamBytes)
	}
	return nil
}

const runByIdempotencyKey = `
SELECT id, items, skipped, sealed_at IS NULL AND NOT opened, opened, coalesce(name, ''), coalesce(plan_version, 0),
    done_by,
    (SELECT coalesce(sum(bit_count(invalid)), 0)::bigint FROM work_block WHERE run_id = batchrun.id AND step = 0)
FROM batchrun
WHERE idempotency_key = $1 AND namespace = $2`

func (s Store) byIdempotencyKey(ctx context.Context, from pg.RowQuerier, l *loader) (Loaded, error) {
	req := &l.req
	if req.IdempotencyKey == "" {
		return Loaded{}, nil
	}
	asking, cancel := context.WithTimeout(ctx, database.TxTimeout) // a leader that starts runs has no time limit
	defer cancel()
	out := Loaded{Existing: true}
	var unsealed, opened bool
	err := from.QueryRow(asking, runByIdempotencyKey, req.IdempotencyKey, req.Namespace).
		Scan(&out.Run, &out.Items, &out.Skipped, &unsealed, &opened, &out.Name, &out.PlanVersion, &out.DoneBy, &out.Invalid)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Loaded{}, nil
	case err != nil:
		return Loaded{}, fmt.Errorf("look up idempotency key %q: %w", req.IdempotencyKey, err)
	case unsealed: // still loading, or being deleted after a failed load
		return Loaded{}, &workqueue.StateError{Run: out.Run, State: "loading",
			Op:  "start again with the same idempotency key",
			Fix: "wait until it has loaded or is gone, then ask again"}
	case opened:
		return Loaded{}, &workqueue.StateError{Run: out.Run, State: "a run that was opened",
			Op: fmt.Sprintf("use idempotency key %q for", req.IdempotencyKey), Fix: "use another key for another run"}
	}
	return l.compare(asking, from, out)
}

const specOfRun = `SELECT spec FROM batchrun WHERE id = $1`

// Spec returns the plan with which a run was started, unchanged.
func (s Store) Spec(ctx context.Context, run workqueue.RunID) (spec json.RawMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	err = s.db.Pool.QueryRow(ctx, specOfRun, run).Scan(&spec)
	return spec, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "read the plan of run %s", run)
}

const runOfIdempotencyKey = `
SELECT plan, coalesce(plan_version, 0), created_at, from_run FROM batchrun
WHERE idempotency_key = $1 AND namespace = $2`

// Keyed is the run started with an idempotency key: its plan, that one's version if it is saved, else 0, when, and the
// run that it continues, if any.
type Keyed struct {
	Plan    string
	Version int
	At      time.Time
	FromRun *workqueue.RunID
}

// Keyed returns the run started with an idempotency key.
func (s Store) Keyed(ctx context.Context, key string) (Keyed, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	out, err := pg.One(ctx, s.db.Pool, pgx.RowToStructByPos[Keyed], runOfIdempotencyKey, key, workqueue.Into(ctx))
	return out, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "look up idempotency key %q", key)
}

const maxTriedFirst = 10

// Tried is what a load would do.
type Tried struct {
	Loaded              // Run is set only when Existing
	Bytes  int64        // of the payloads
	First  []PreviewRow // the first items, at most ten
	Steps  []TriedStep  // in the order of the request; none when Existing
	Held   int64        // items that a canary would hold at first
}

// PreviewRow is one item.
type PreviewRow struct {
	Line    int             `json:"line" doc:"its place: a line, or the number of a row"`
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"`
}

// TriedStep is what a step would do for the run.
type TriedStep struct {
	Chunk    int   // current
	Requests int64 // at that size; more if payloads are large
}

// TryLoad returns what [Store.Load] would do for the same request, without storing anything, and the errors that
// Load would return. It reads all items in constant memory, and searches for duplicate keys in a file in dir instead
// of the database. The run is made without items, checked by the schema, and rolled back. Concurrent changes can
// alter the outcome: another run may take the idempotency key, or a service may learn to take larger chunks.
func (s Store) TryLoad(ctx context.Context, req LoadRequest, dir string, next func(*LoadItem) error) (Tried, error) {
	l, known, err := s.prepare(ctx, s.db.Pool, req, next)
	if err != nil || known.Existing {
		return Tried{Loaded: known}, err
	}
	t := &trial{loader: l, keys: &keyLog{dir: dir, seed: maphash.MakeSeed()}}
	err = errors.Join(t.read(), t.keys.close(), s.checkDoneBy(ctx, &req))
	if err == nil {
		err = t.rehearse(ctx)
	}
	if pg.IsUniqueViolation(err, "batchrun_idempotency_key_key") { // another load with the key was faster
		known, err := s.byIdempotencyKey(ctx, s.db.Pool, l)
		return Tried{Loaded: known}, err
	}
	if err != nil {
		return Tried{}, fmt.Errorf("load run: %w", err)
	}
	return t.out, nil
}

type trial struct {
	*loader

	keys *keyLog
	out  Tried
}

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

func (t *trial) show(batch *itemBatch, row itemRow) {
	key := string(batch.key(row))
	known := func(i PreviewRow) bool { return i.Key == key }
	if len(t.out.First) == maxTriedFirst ||
		t.req.OnDuplicate == DuplicateSkip && slices.ContainsFunc(t.out.First, known) {
		return
	}
	t.out.First = append(t.out.First, PreviewRow{row.line, key, slices.Clone(batch.payload(row))})
}

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
	for rest := t.items; rest > 0; rest -= bitfield.Size { // which payloads are in which block does not matter here
		t.sizes = append(t.sizes, t.out.Bytes*min(rest, bitfield.Size)/t.items)
	}
	if t.sampled() {
		t.out.Held = t.items - int64(t.req.Canary)
	}
	return nil
}

// rehearse makes the run without items and rolls back.
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

// step counts the requests of a step: slices do not cross blocks.
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
