package start

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

type loader struct {
	invalid     []invalidItem
	refused     int    // invalid items read
	first       string // why the first is invalid
	completions []settle.Completion

	store   *database.DB
	req     LoadRequest
	run     workqueue.RunID
	next    func(*LoadItem) error
	lines   lineIndex // line of each item in the source
	items   int64
	skipped int64
	sizes   []int64 // payload bytes of each block
	digest  *itemDigest
	key     []byte // of its values, encrypted; nil: they are not
	cipher  *database.Seal
	keyed   bool // key and cipher are known
	unsure  bool // the commit of the run's row is unknown
	whole   bool // the load is one transaction
	counted bool // and the number of items was known before
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
		err = l.undo(ctx, err)
	}
	if err != nil {
		return Loaded{}, err
	}
	return Loaded{Run: l.run, Items: l.items, Skipped: l.skipped, Invalid: int64(len(l.invalid)),
		Completions: l.completions}, nil
}

// undo deletes what a failed load has written. A commit whose answer was lost may have succeeded: then the run is
// sealed. What cannot be determined or deleted is returned as a *CleanupPendingError.
func (l *loader) undo(ctx context.Context, failed error) error {
	clearing, cancel := context.WithTimeout(context.WithoutCancel(ctx), database.LoadTimeout)
	defer cancel()
	failed = l.explain(clearing, l.store.Pool, failed)
	for tries := 1; ; tries++ {
		sealed, err := New(l.store).ClearLoad(clearing, l.run)
		switch {
		case sealed:
			return nil
		case err == nil && !l.unsure:
			return failed
		case tries == undoTries || clearing.Err() != nil:
			return &workqueue.CleanupPendingError{Run: l.run, Cause: errors.Join(failed, err)}
		}
		_ = backoff.Sleep(clearing, undoPause) // the next try fails when the time is up
	}
}

const (
	undoTries = 10
	// Between ten tries to delete a failed load; then its node tries each second, and the leader.
	undoPause = 300 * time.Millisecond
)

// begin inserts the run's row. If PostgreSQL does not confirm it, the row may appear after a search for it.
func (l *loader) begin(ctx context.Context, limit time.Duration, f func(context.Context, pgx.Tx) error) error {
	var inside error // an error before the commit: nothing appears then
	err := l.store.InTxWithin(ctx, limit, func(ctx context.Context, tx pgx.Tx) error {
		inside = f(ctx, tx)
		return inside
	})
	if err != nil {
		_, answered := errors.AsType[*pgconn.PgError](err)
		l.unsure = !answered && inside == nil
	}
	return err
}

// fill reads items into the batch until it is full; io.EOF means the end.
func (l *loader) fill(b *itemBatch) (*itemBatch, error) {
	var item LoadItem
	for len(b.rows) < batchRows && len(b.arena) < batchBytes {
		item.Line, item.Invalid = 0, ""
		if err := l.next(&item); err != nil {
			return b, err
		}
		if b.base+len(b.rows) >= maxItems {
			return b, fmt.Errorf("more than %d items; split them over several runs", maxItems)
		}
		if item.Invalid != "" {
			if err := l.reject(&item); err != nil {
				return b, err
			}
		}
		lane, err := l.lane(&item, b.base+len(b.rows))
		if err != nil {
			return b, err
		}
		b.add(&item, lane)
		if l.digest != nil {
			l.digest.add(&item)
		}
	}
	return b, nil
}

func (l *loader) loadAtOnce(ctx context.Context, b *itemBatch) error {
	l.whole = true
	err := errApart
	if l.asksNothing(ctx, b) {
		err = database.Kept[companions](l.store).load(ctx, l, b)
	}
	if errors.Is(err, errApart) {
		err = l.begin(ctx, database.LoadTimeout, func(ctx context.Context, tx pgx.Tx) error {
			return l.makeWhole(ctx, tx, b)
		})
	}
	if err != nil {
		return b.refused(err)
	}
	for i := range l.req.Steps {
		database.Kept[knownPaces](l.store).Store(l.req.Steps[i].Endpoint, true)
	}
	return nil
}

func (l *loader) makeWhole(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	l.items, l.skipped, l.sizes, l.lines, l.invalid, l.completions = 0, 0, nil, lineIndex{}, nil, nil
	if l.counted = l.req.OnDuplicate != DuplicateSkip; l.counted {
		l.account(b)
	}
	if err := l.insertRun(ctx, tx); err != nil {
		return err
	}
	if err := l.put(ctx, tx, b); err != nil {
		return err
	}
	if !l.counted {
		l.account(b)
	}
	return l.seal(ctx, tx)
}

// makeWithin makes the run in a transaction that its owner commits, batch after batch.
func (l *loader) makeWithin(ctx context.Context, tx pgx.Tx) error {
	if err := l.insertRun(ctx, tx); err != nil {
		return err
	}
	for b := (&itemBatch{}); ; b.reset(int(l.items)) {
		_, read := l.fill(b)
		if read != nil && !errors.Is(read, io.EOF) {
			return read
		}
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return l.put(ctx, tx, b) }); err != nil {
			return l.explain(ctx, tx, b.refused(err))
		}
		l.account(b)
		if read != nil {
			return l.seal(ctx, tx)
		}
	}
}

// loadInParts makes a large run: the row, then batches in parallel, then the seal. The leader deletes abandoned loads.
func (l *loader) loadInParts(ctx context.Context, first *itemBatch) error {
	if err := l.choosePartition(ctx); err != nil {
		return err
	}
	if err := l.begin(ctx, database.TxTimeout, l.insertRun); err != nil {
		return err
	}
	if err := l.stream(ctx, first); err != nil {
		return err
	}
	return l.store.InTxWithin(ctx, database.LoadTimeout, l.seal)
}

const loadConnections = 2

// stream reads batches on this goroutine and writes them on others. Runs that skip duplicates have one writer, since a
// batch's ordinals depend on what earlier batches kept.
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
	err := l.store.InTxWithin(ctx, database.LoadTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if err := l.holdLoading(ctx, tx); err != nil {
			return err
		}
		return l.put(ctx, tx, b)
	})
	if err == nil && l.req.OnDuplicate == DuplicateSkip { // only now is the number of items known
		l.account(b)
	}
	return err
}

func (l *loader) account(b *itemBatch) {
	for i, row := range b.rows {
		block := int(l.items) / bitfield.Size
		if block == len(l.sizes) {
			l.sizes = append(l.sizes, 0)
		}
		l.sizes[block] += int64(l.store.StoredText(row.end - row.mid))
		l.lines.add(int(l.items), b.rows[i].line)
		if row.invalid != "" {
			l.invalid = append(l.invalid, invalidItem{int(l.items), row.invalid})
		}
		l.items++
	}
	l.skipped += b.skipped
}

// insertRun inserts runs that are loading or, if the number of items is known, already running. It must set the same
// columns as sealRun.
const insertRun = `
INSERT INTO batchrun
    (id, name, plan, spec, params, state, priority, source, created_by, idempotency_key, loader_session, plan_version,
     max_failed, fail_fast, canary, canary_auto_approve, items, failed_limit, canary_state, canary_generation,
     sealed_at, started_at, from_run, done_by, gentle, namespace, data_key, from_outcome)
SELECT u.id, nullif(u.name, ''), u.plan, u.spec, u.params, CASE WHEN u.items IS NULL THEN 'loading' ELSE 'running' END,
    u.priority, u.source, u.created_by, nullif(u.idempotency_key, ''), u.session, nullif(u.version, 0), u.max_failed,
    u.fail_fast, u.canary, u.canary_auto_approve, coalesce(u.items, 0), u.failed_limit,
    CASE WHEN u.sampled THEN 'sampling' END, CASE WHEN u.sampled THEN 1 END, t.now, t.now,
    nullif(u.from_run, '00000000-0000-0000-0000-000000000000'::uuid), u.done_by, u.gentle, u.namespace,
    u.data_key, nullif(u.from_outcome, '')
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[], $5::jsonb[], $6::integer[], $7::text[], $8::text[],
    $9::text[], $10::uuid[], $11::integer[], $12::text[], $13::integer[], $14::boolean[], $15::bigint[],
    $16::bigint[], $17::boolean[], $18::text[], $19::uuid[], $20::timestamptz[], $21::boolean[], $22::text[],
    $23::bytea[], $24::text[])
    AS u (id, name, plan, spec, params, priority, source, created_by, idempotency_key, session, version, max_failed,
        canary, canary_auto_approve, items, failed_limit, sampled, fail_fast, from_run, done_by, gentle, namespace,
        data_key, from_outcome)
CROSS JOIN LATERAL (SELECT CASE WHEN u.items IS NOT NULL THEN tranche_now() END AS now) t`

func insertStep() string {
	return `
INSERT INTO run_step (run_id, step, name, kind, endpoint, needs, inputs, input_item, optional, barrier, config,
    approval, ` + plane.SettingColumns() + `)
SELECT u.run, u.step, u.name, u.kind, u.endpoint, u.needs::smallint[], u.inputs::smallint[], u.input_item, u.optional,
    u.barrier, u.config, nullif(u.approval, ''), ` + plane.SettingElements("u.") + `
FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::boolean[],
    $9::boolean[], $10::boolean[], $11::jsonb[], $12::text[], ` + plane.SettingArrays(13) + `)
    AS u (run, step, name, kind, endpoint, needs, inputs, input_item, optional, barrier, config, approval, ` +
		plane.SettingColumns() + `)`
}

func (l *loader) insertRun(ctx context.Context, tx pgx.Tx) error {
	r := &l.req
	var items, failedLimit *int64
	if l.counted {
		var err error
		if failedLimit, err = workqueue.FailedLimit(r.MaxFailed, l.items); err != nil {
			return err
		}
		items = &l.items
	}
	if err := l.encrypt(ctx, tx); err != nil {
		return err
	}
	params, err := json.Marshal(r.params())
	if err != nil {
		return fmt.Errorf("write the parameters: %w", err)
	}
	batch := &pgx.Batch{}
	batch.Queue(insertRun, pg.Row(l.run, r.Name, r.Plan, r.spec(), l.cipher.Params(params), r.Priority, r.Source,
		r.CreatedBy, r.IdempotencyKey, r.Session, r.PlanVersion, r.MaxFailed, r.Canary, r.CanaryAutoApprove, items,
		failedLimit, l.counted && l.sampled(), r.FailFast.String(), r.FromRun, r.DoneBy, r.Gentle, r.Namespace, l.key,
		string(r.FromOutcome))...)
	for i, st := range r.Steps {
		batch.Queue(insertStep(), append(pg.Row(l.run, i, st.Name, st.EffectiveKind(), st.Endpoint,
			pg.ArrayText(st.Needs), pg.ArrayText(st.Inputs), !st.NoItem, st.Optional,
			st.Barrier && len(st.Needs) > 0, st.Config, st.Approval), plane.SettingRow(&st.StepSettings)...)...)
	}
	if err := pg.Join(ctx, tx, batch); err != nil {
		return fmt.Errorf("insert run: %w", err)
	}
	if r.Order != nil {
		if _, err := tx.Exec(ctx, insertOrder, l.run, &r.Order.Rule, r.Order.Stop); err != nil {
			return fmt.Errorf("write the order: %w", err)
		}
		return l.refuseOldNodes(ctx, tx, speaksOrder)
	}
	if len(r.Steps) > 1 || r.Steps[0].EffectiveKind() != workqueue.KindEndpoint {
		return l.refuseOldNodes(ctx, tx, speaksSteps)
	}
	return nil
}

// Feature levels of nodes.
const (
	speaksSteps = 2 // runs of several steps
	speaksOrder = 3 // and runs whose items are kept in order
)

// encrypt makes the run's data key, once: a repeated transaction may follow one that was committed.
func (l *loader) encrypt(ctx context.Context, tx pgx.Tx) (err error) {
	if !l.keyed { // Seal would not find the uncommitted row.
		l.key, l.cipher, err = l.store.NewDataKey(l.run)
		l.keyed = err == nil
	}
	if err != nil || l.key == nil {
		return err
	}
	return l.store.CheckNodes(ctx, tx, l.run, "start")
}

// oldNodes finds live nodes below feature level $1. From now on none gets a session.
const oldNodes = `
SELECT format('%s (pid %s, version %s)', host, pid, version) FROM node_session
WHERE feature_level < $1 AND ended_at IS NULL AND expires_at > tranche_now()
ORDER BY started_at LIMIT 1`

// refuseOldNodes refuses a run while a node is alive that would mistake its steps for requests or forget its lanes.
func (l *loader) refuseOldNodes(ctx context.Context, tx pgx.Tx, speaks int) error {
	var node string
	err := tx.QueryRow(ctx, oldNodes, speaks).Scan(&node)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("find older nodes: %w", err)
	}
	what := "of steps that node "
	if speaks == speaksOrder {
		what = "one with order_by, which node "
	}
	return &workqueue.StateError{Run: l.run, State: what + node + " does not know", Op: "start",
		Fix: "stop that node, or start this version in its place, and start the run again"}
}

// holdLoading locks the run's row FOR SHARE, so that a sweep waits for this batch or fails it: no orphaned items.
func (l *loader) holdLoading(ctx context.Context, tx pgx.Tx) error {
	const hold = `SELECT 1 FROM batchrun WHERE id = $1 AND state = 'loading' FOR SHARE`
	tag, err := tx.Exec(ctx, hold, l.run)
	if err != nil {
		return fmt.Errorf("hold run %s: %w", l.run, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("run %s: %w: its load was abandoned because the loading node lost its session", l.run,
			workqueue.ErrSessionLost)
	}
	return nil
}
