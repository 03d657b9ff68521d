package workqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// OnDuplicate says what intake does with an item whose key the run already has.
type OnDuplicate string

// What to do with duplicates.
const (
	DuplicateError OnDuplicate = "error" // refuse the whole run
	DuplicateSkip  OnDuplicate = "skip"  // keep the first, count the others
	DuplicateAllow OnDuplicate = "allow" // they are items of their own
)

// StepSpec is a step as a run starts with it.
type StepSpec struct {
	Name         string
	Endpoint     string
	Chunk        int // items of a slice at the most, 1 to 8192
	InFlight     int // slices at once over all nodes
	MaxAttempts  int
	Timeout      time.Duration
	RetryBackoff time.Duration
}

// LoadRequest describes a run to be made.
type LoadRequest struct {
	Name           string // may be empty; need not be unique
	Plan           string
	Spec           json.RawMessage // the plan in full, kept as it is
	Params         map[string]string
	Priority       int
	Steps          []StepSpec
	OnDuplicate    OnDuplicate // empty: DuplicateError
	Source         string      // where the items come from, for people
	CreatedBy      string
	IdempotencyKey string    // empty: none
	Session        SessionID // the node that loads; should it die, the half-made run is cleared away
}

// LoadItem is one item on its way in. Next fills it; its memory may be used again by the following call.
type LoadItem struct {
	Key     string
	Payload []byte // a JSON value in UTF-8 without NUL
	Line    int    // where it stands in its source, for errors; 0 when it has no line
}

// Loaded is the outcome of a load.
type Loaded struct {
	Run      RunID
	Items    int64
	Skipped  int64 // duplicates left out
	Existing bool  // the idempotency key was known: this is the run that was made with it
}

// maxItems is the largest number of items in a run: ordinals are 31 bits, and whole blocks.
const maxItems = math.MaxInt32 / bitfield.Size * bitfield.Size

const loadConnections = 2

// Load makes a run of the items that next yields until io.EOF, and sets it going. It streams: its memory does not grow
// with the number of items. It is all or nothing: after an error there is no run, and no item of it. A load of up to
// one batch is a single transaction; a larger one shows as a run in state "loading" until it is sealed.
func (s *Store) Load(ctx context.Context, req LoadRequest, next func(*LoadItem) error) (Loaded, error) {
	if req.OnDuplicate == "" {
		req.OnDuplicate = DuplicateError
	}
	if err := req.validate(); err != nil {
		return Loaded{}, err
	}
	if known, err := s.byIdempotencyKey(ctx, req); err != nil || known.Existing {
		return known, err
	}
	l := &loader{store: s, req: req, run: NewRunID(), next: next}
	out, err := l.load(ctx)
	if isUniqueViolation(err, "batchrun_idempotency_key_key") { // another load with the key was faster
		return s.byIdempotencyKey(ctx, req)
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("load run: %w", err)
	}
	return out, nil
}

func (r *LoadRequest) validate() error {
	switch {
	case len(r.Steps) != 1:
		return fmt.Errorf("load run: %d steps; this version runs plans of one step", len(r.Steps))
	case r.Plan == "":
		return errors.New("load run: the plan has no name")
	}
	switch r.OnDuplicate {
	case DuplicateError, DuplicateSkip, DuplicateAllow:
		return nil
	default:
		return fmt.Errorf("load run: on duplicate %q is none of error, skip, allow", r.OnDuplicate)
	}
}

const runByIdempotencyKey = `
SELECT id, items, skipped, state, plan, spec = $2 FROM batchrun WHERE idempotency_key = $1`

func (s *Store) byIdempotencyKey(ctx context.Context, req LoadRequest) (Loaded, error) {
	if req.IdempotencyKey == "" {
		return Loaded{}, nil
	}
	out := Loaded{Existing: true}
	var state, plan string
	var same bool
	err := s.pool.QueryRow(ctx, runByIdempotencyKey, req.IdempotencyKey, req.Spec).
		Scan(&out.Run, &out.Items, &out.Skipped, &state, &plan, &same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Loaded{}, nil
	case err != nil:
		return Loaded{}, fmt.Errorf("look up idempotency key %q: %w", req.IdempotencyKey, err)
	case state == "loading":
		return Loaded{}, &StateError{out.Run, state, "start again with the same idempotency key",
			"wait until it has loaded, then ask again"}
	case !same:
		return Loaded{}, &StateError{out.Run, "of plan " + plan + " with other settings",
			fmt.Sprintf("use idempotency key %q for", req.IdempotencyKey), "use another key for another run"}
	}
	return out, nil
}

// loader is one load under way.
type loader struct {
	store   *Store
	req     LoadRequest
	run     RunID
	next    func(*LoadItem) error
	lines   lineIndex // where each item stood in the source
	items   int64
	skipped int64
	sizes   []int64 // payload bytes of each block
}

func (l *loader) load(ctx context.Context) (Loaded, error) {
	first, err := l.fill(&itemBatch{})
	if err != nil && !errors.Is(err, io.EOF) {
		return Loaded{}, err
	}
	if errors.Is(err, io.EOF) {
		err = l.loadAtOnce(ctx, first)
	} else {
		err = l.loadInParts(ctx, first)
	}
	if err != nil {
		return Loaded{}, err
	}
	return Loaded{Run: l.run, Items: l.items, Skipped: l.skipped}, nil
}

// fill reads items into the batch until it is full; io.EOF says that there are no more.
func (l *loader) fill(b *itemBatch) (*itemBatch, error) {
	var item LoadItem
	for !b.full() {
		item.Line = 0
		if err := l.next(&item); err != nil {
			return b, err
		}
		if b.base+len(b.rows) >= maxItems {
			return b, fmt.Errorf("more than %d items; split them over several runs", maxItems)
		}
		b.add(&item)
	}
	return b, nil
}

// loadAtOnce makes a small run in one transaction.
func (l *loader) loadAtOnce(ctx context.Context, b *itemBatch) error {
	err := l.store.inTx(ctx, func(tx pgx.Tx) error {
		l.items, l.skipped, l.sizes = 0, 0, nil
		if err := l.insertRun(ctx, tx); err != nil {
			return err
		}
		if err := l.put(ctx, tx, b); err != nil {
			return err
		}
		l.account(b)
		return l.seal(ctx, tx)
	})
	return l.explain(ctx, err)
}

// loadInParts makes a large run: the row first, then batches in transactions of their own over a few connections, then
// the seal. A load that fails takes back what it wrote; one that dies leaves that to the leader.
func (l *loader) loadInParts(ctx context.Context, first *itemBatch) (err error) {
	if err := pgx.BeginFunc(ctx, l.store.pool, func(tx pgx.Tx) error { return l.insertRun(ctx, tx) }); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			clearing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			err = errors.Join(l.explain(ctx, err), l.store.clearLoad(clearing, l.run))
		}
	}()
	if err := l.stream(ctx, first); err != nil {
		return err
	}
	return l.store.inTx(ctx, func(tx pgx.Tx) error { return l.seal(ctx, tx) })
}

// stream reads batches on this goroutine and writes them on a few others. Runs that skip duplicates have one writer,
// since the ordinals of a batch depend on what the batches before it kept.
func (l *loader) stream(ctx context.Context, batch *itemBatch) error {
	group, ctx := errgroup.WithContext(ctx)
	writers := loadConnections
	if l.req.OnDuplicate == DuplicateSkip {
		writers = 1
	}
	full := make(chan *itemBatch)
	empty := make(chan *itemBatch, writers+1)
	for range writers {
		empty <- &itemBatch{}
		group.Go(func() error {
			for b := range full {
				if err := l.write(ctx, b); err != nil {
					return err
				}
				select {
				case empty <- b:
				case <-ctx.Done():
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(full)
		return l.read(ctx, batch, full, empty)
	})
	return group.Wait()
}

func (l *loader) read(ctx context.Context, batch *itemBatch, full, empty chan *itemBatch) error {
	for more := true; more; {
		if len(batch.rows) > 0 {
			base := batch.base + len(batch.rows)
			if l.req.OnDuplicate != DuplicateSkip {
				l.account(batch)
			}
			select {
			case full <- batch:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			select {
			case batch = <-empty:
				batch.reset(base)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		_, err := l.fill(batch)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		more = err == nil || len(batch.rows) > 0
	}
	return nil
}

func (l *loader) write(ctx context.Context, b *itemBatch) error {
	err := l.store.inTx(ctx, func(tx pgx.Tx) error {
		if err := l.holdLoading(ctx, tx); err != nil {
			return err
		}
		return l.put(ctx, tx, b)
	})
	if err == nil && l.req.OnDuplicate == DuplicateSkip { // only now is it known how many there are
		l.account(b)
	}
	return err
}

// account adds a batch to the run's numbers.
func (l *loader) account(b *itemBatch) {
	for i, row := range b.rows {
		block := int(l.items) / bitfield.Size
		if block == len(l.sizes) {
			l.sizes = append(l.sizes, 0)
		}
		l.sizes[block] += int64(row.end - row.mid)
		l.lines.add(int(l.items), b.rows[i].line)
		l.items++
	}
	l.skipped += b.skipped
}

const insertRun = `
INSERT INTO batchrun (id, name, plan, spec, params, state, priority, source, created_by, idempotency_key, loader_session)
VALUES ($1, nullif($2, ''), $3, $4, $5, 'loading', $6, $7, $8, nullif($9, ''), $10)`

const insertStep = `
INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, slice_timeout, retry_backoff)
VALUES ($1, $2, $3, 'endpoint', $4, $5, $6, $7, $8, $9)`

func (l *loader) insertRun(ctx context.Context, tx pgx.Tx) error {
	r := &l.req
	params := r.Params
	if params == nil {
		params = map[string]string{}
	}
	spec := r.Spec
	if spec == nil {
		spec = json.RawMessage("{}")
	}
	batch := &pgx.Batch{}
	batch.Queue(insertRun, l.run, r.Name, r.Plan, spec, params, r.Priority, r.Source, r.CreatedBy, r.IdempotencyKey,
		r.Session)
	for i, st := range r.Steps {
		batch.Queue(insertStep, l.run, i, st.Name, st.Endpoint, st.Chunk, st.InFlight, st.MaxAttempts, st.Timeout,
			st.RetryBackoff)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("insert run: %w", err)
	}
	return nil
}

// holdLoading keeps the run's row FOR SHARE, so that a sweep that clears the load away waits for this batch or makes it
// fail, and leaves no orphans.
func (l *loader) holdLoading(ctx context.Context, tx pgx.Tx) error {
	const hold = `SELECT 1 FROM batchrun WHERE id = $1 AND state = 'loading' FOR SHARE`
	tag, err := tx.Exec(ctx, hold, l.run)
	if err != nil {
		return fmt.Errorf("hold run %s: %w", l.run, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("run %s: %w: its load was given up because the loading node lost its session", l.run,
			ErrSessionLost)
	}
	return nil
}

const insertBlocks = `
INSERT INTO work_block (run_id, step, block, size, payload_bytes, ready)
SELECT $1, 0, u.n - 1, u.size, u.bytes, u.ready
FROM unnest($2::int[], $3::bigint[], $4::bit(8192)[]) WITH ORDINALITY AS u (size, bytes, ready, n)`

const sealRun = `
UPDATE batchrun
SET state = 'running', items = $2, skipped = $3, sealed_at = clock_timestamp(), started_at = clock_timestamp()
WHERE id = $1 AND state = 'loading'`

// seal makes the blocks, all of them ready, seals the tracker batch and sets the run going.
func (l *loader) seal(ctx context.Context, tx pgx.Tx) error {
	sizes, ready := l.blocks()
	if _, err := tx.Exec(ctx, insertBlocks, l.run, sizes, l.sizes, pgbits.Slice(ready)); err != nil {
		return fmt.Errorf("insert %d blocks: %w", len(sizes), err)
	}
	id := uuid.UUID(l.run)
	if err := tracker.Open(ctx, tx, id, "run"); err != nil {
		return err
	}
	if _, err := tracker.AddGroups(ctx, tx, id, sizes); err != nil {
		return err
	}
	if _, err := tracker.Seal(ctx, tx, id); err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, sealRun, l.run, l.items, l.skipped)
	if err != nil {
		return fmt.Errorf("seal run %s: %w", l.run, err)
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("seal run %s: %w: its load was given up", l.run, ErrSessionLost)
	}
	err = audit(ctx, tx, l.req.CreatedBy, "start", l.run, map[string]any{"plan": l.req.Plan, "items": l.items})
	if err != nil {
		return err
	}
	return addEvent(ctx, tx, l.run, 1, EventStarted, map[string]any{"plan": l.req.Plan, "items": l.items})
}

func (l *loader) blocks() (sizes []int, ready []bitfield.Set) {
	for b := range l.sizes {
		size := int(min(bitfield.Size, l.items-int64(b)*bitfield.Size))
		sizes = append(sizes, size)
		ready = append(ready, bitfield.Full(size))
	}
	return sizes, ready
}

func isUniqueViolation(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505" && pg.ConstraintName == constraint
}
