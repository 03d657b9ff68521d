package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
)

// OnOverdue is what happens to an open run not sealed by its deadline. It is reported in any case.
type OnOverdue string

// What to do with overdue runs.
const (
	OverdueReport OnOverdue = "report" // only report it, until [AbandonedAfter]
	OverdueSeal   OnOverdue = "seal"
	OverdueCancel OnOverdue = "cancel"
)

// The time until an open run must be sealed.
const (
	DefaultSealWithin = 24 * time.Hour
	MaxSealWithin     = 366 * 24 * time.Hour
)

// AbandonedAfter is how long an overdue open run, unless paused, waits for any activity: added items, a change, a
// note, or answered requests. Then it is cancelled, even with OverdueReport.
const AbandonedAfter = 7 * 24 * time.Hour

// OpenRequest describes a run that gets its items later, by [Store.Add].
type OpenRequest struct {
	LoadRequest

	SealWithin time.Duration // until it is overdue; 0: DefaultSealWithin
	OnOverdue  OnOverdue     // empty: OverdueReport
}

// Opened is a run that was opened.
type Opened struct {
	Run          workqueue.RunID
	Name         string
	SealDeadline time.Time
	Existing     bool // the idempotency key was known: this is its run
}

// openRun continues after insertRun, in its transaction. A number of failed items limits the run immediately; a
// percentage does so after the seal, when the number of items is known.
const openRun = `
UPDATE batchrun
SET state = 'running', opened = true, seal_deadline = tranche_now() + $2::interval, on_overdue = $3, on_duplicate = $4,
    failed_limit = $5, content = $6, started_at = tranche_now(), loader_session = NULL
WHERE id = $1 AND state = 'loading'
RETURNING seal_deadline`

// makeGate inserts the row that serializes adds and the seal of an open run: in run_add, with an empty key.
const makeGate = `INSERT INTO run_add (run_id, key, digest, ordinal, items) VALUES ($1, '', '', 0, 0)`

// OpenRun makes a run without items that takes them until it is sealed. It is running from the start: full blocks
// become ready immediately, the rest with the seal. A canary is refused, since its population is unknown.
func (s Store) OpenRun(ctx context.Context, req OpenRequest) (Opened, error) {
	req.Namespace = cmp.Or(req.Namespace, workqueue.Into(ctx))
	if err := req.check(); err != nil {
		return Opened{}, err
	}
	if known, err := s.openedByKey(ctx, &req); err != nil || known.Existing {
		return known, err
	}
	if err := s.checkDoneBy(ctx, &req.LoadRequest); err != nil {
		return Opened{}, err
	}
	var out Opened
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = req.open(ctx, tx, &loader{store: s.db, req: req.LoadRequest, run: workqueue.NewRunID()})
		return err
	})
	if pg.IsUniqueViolation(err, "batchrun_idempotency_key_key") { // another one with the key was faster
		return s.openedByKey(ctx, &req)
	}
	return out, pg.Wrap(err, "open run")
}

func (req *OpenRequest) check() error {
	req.OnDuplicate = cmp.Or(req.OnDuplicate, DuplicateError)
	req.SealWithin = cmp.Or(req.SealWithin, DefaultSealWithin)
	req.OnOverdue = cmp.Or(req.OnOverdue, OverdueReport)
	switch {
	case req.Canary > 0:
		return workqueue.BadSetting("an open run cannot have a canary: what it would be a sample of is not known before " +
			"the seal; leave the canary out, or start the run with all its items")
	case req.SealWithin < time.Second || req.SealWithin > MaxSealWithin:
		return workqueue.BadSetting("seal within is %s; it must be from 1s to %s", req.SealWithin, MaxSealWithin)
	}
	req.Content = &Content{Said: map[string]string{"on_duplicate": string(req.OnDuplicate),
		"seal_within": req.SealWithin.String(), "on_overdue": string(req.OnOverdue)}}
	switch req.OnOverdue {
	case OverdueReport, OverdueSeal, OverdueCancel:
		return req.validate()
	default:
		return workqueue.BadSetting("on overdue is %.40q; it must be report, seal or cancel", req.OnOverdue)
	}
}

func (req *OpenRequest) open(ctx context.Context, tx pgx.Tx, l *loader) (Opened, error) {
	out := Opened{Run: l.run, Name: req.Name}
	if err := l.insertRun(ctx, tx); err != nil {
		return out, err
	}
	batch := &pgx.Batch{}
	batch.Queue(pace.MakePaces, l.run)
	req.queueFailFast(batch, l.run)
	if err := pg.Leave(ctx, tx, batch); err != nil {
		return out, fmt.Errorf("keep the paces of its endpoints, and the fail-fast limits of its steps: %w", err)
	}
	if err := tracker.Open(ctx, tx, uuid.UUID(l.run), "run"); err != nil {
		return out, err
	}
	limit, err := workqueue.FailedLimit(req.MaxFailed, 0)
	if err != nil {
		return out, err
	}
	if strings.HasSuffix(req.MaxFailed, "%") {
		limit = nil // until it is known of how many
	}
	err = tx.QueryRow(ctx, openRun, l.run, req.SealWithin, string(req.OnOverdue), string(req.OnDuplicate), limit,
		l.content()).Scan(&out.SealDeadline)
	if err != nil {
		return out, fmt.Errorf("open run %s: %w", l.run, err)
	}
	if _, err := tx.Exec(ctx, makeGate, l.run); err != nil {
		return out, fmt.Errorf("open run %s: %w", l.run, err)
	}
	after := l.settings()
	delete(after, "items")
	after["seal_within"], after["on_overdue"] = req.SealWithin.String(), req.OnOverdue
	if err := ledger.AuditChange(ctx, tx, ledger.Action{Actor: req.CreatedBy, Name: "open", Run: l.run,
		After: after}); err != nil {
		return out, err
	}
	return out, ledger.AddEvent(ctx, tx, l.run, 1, workqueue.EventStarted,
		map[string]any{"plan": req.Plan, "items": 0, "open": true, "seal_deadline": out.SealDeadline})
}

const openedByKey = `
SELECT id, coalesce(name, ''), opened, coalesce(seal_deadline, 'epoch')
FROM batchrun WHERE idempotency_key = $1 AND namespace = $2`

func (s Store) openedByKey(ctx context.Context, req *OpenRequest) (Opened, error) {
	if req.IdempotencyKey == "" {
		return Opened{}, nil
	}
	out := Opened{Existing: true}
	var opened bool
	err := s.db.Pool.QueryRow(ctx, openedByKey, req.IdempotencyKey, req.Namespace).
		Scan(&out.Run, &out.Name, &opened, &out.SealDeadline)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Opened{}, nil
	case err != nil:
		return Opened{}, fmt.Errorf("look up idempotency key %q: %w", req.IdempotencyKey, err)
	case !opened:
		return Opened{}, &workqueue.StateError{Run: out.Run, State: "one that was started with all its items",
			Op:  fmt.Sprintf("use idempotency key %q for", req.IdempotencyKey),
			Fix: "use another key to open a run"}
	}
	if _, err := (&loader{store: s.db, req: req.LoadRequest}).compare(ctx, s.db.Pool, Loaded{Run: out.Run}); err != nil {
		return Opened{}, err
	}
	return out, nil
}

// OverdueRun is an open run past its seal deadline.
type OverdueRun struct {
	Run          workqueue.RunID
	SealDeadline time.Time
	Items        int64
	OnOverdue    OnOverdue // what to do now
	Reported     bool      // it was reported now for the first time
	Abandoned    bool      // no activity for [AbandonedAfter]
}

const (
	// By batchrun_active: open runs are in progress. Each is reported once.
	reportOverdue = `
UPDATE batchrun SET overdue_at = tranche_now()
WHERE state = 'running' AND opened AND sealed_at IS NULL AND overdue_at IS NULL
  AND seal_deadline <= (SELECT tranche_now())
RETURNING id, seal_deadline, items, on_overdue, generation`

	// What a leader has reported and not finished. Every action on a run is in the audit log, which loses nothing
	// while the run is in progress. A run whose backlog is being worked on is in use.
	leftOverdue = `
SELECT id, seal_deadline, items, CASE WHEN on_overdue = 'report' THEN 'cancel' ELSE on_overdue END,
    on_overdue = 'report'
FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND overdue_at IS NOT NULL
  AND (on_overdue <> 'report' OR hold IS NULL AND overdue_at < tranche_now() - $1::interval
       AND NOT EXISTS (SELECT FROM audit_log a
                       WHERE a.run_id = batchrun.id AND a.at >= tranche_now() - $1::interval)
       AND NOT EXISTS (SELECT FROM work_slice w
                       WHERE w.run_id = batchrun.id AND w.state = 'recorded'
                           AND w.ended_at >= tranche_now() - $1::interval))
ORDER BY id`
)

// ReportOverdue marks open runs past their seal deadline, each once, with an event. It returns them and those marked
// before that must still be sealed or cancelled. Leader work: the caller seals or cancels them.
func (s Store) ReportOverdue(ctx context.Context, lease workqueue.Lease) ([]OverdueRun, error) {
	var out []OverdueRun
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = overdueRuns(ctx, tx)
		return err
	})
	return out, pg.Wrap(err, "report runs that were not sealed before their deadline")
}

func overdueRuns(ctx context.Context, tx pgx.Tx) (out []OverdueRun, err error) {
	var o OverdueRun
	var gens []workqueue.Generation
	var gen workqueue.Generation
	err = pg.Each(pg.Rows(ctx, tx, reportOverdue), []any{&o.Run, &o.SealDeadline, &o.Items, &o.OnOverdue, &gen}, func() {
		o.Reported = true
		out, gens = append(out, o), append(gens, gen)
	})
	if err != nil {
		return nil, err
	}
	known := map[workqueue.RunID]bool{}
	for i := range out {
		known[out[i].Run] = true
		err := ledger.AddEvent(ctx, tx, out[i].Run, gens[i], workqueue.EventOverdue,
			map[string]any{"seal_deadline": out[i].SealDeadline, "items": out[i].Items, "on_overdue": out[i].OnOverdue})
		if err != nil {
			return nil, err
		}
	}
	o = OverdueRun{}
	err = pg.Each(pg.Rows(ctx, tx, leftOverdue, AbandonedAfter),
		[]any{&o.Run, &o.SealDeadline, &o.Items, &o.OnOverdue, &o.Abandoned}, func() {
			if !known[o.Run] {
				out = append(out, o)
			}
		})
	return out, err
}

// openState is an open run while its gate is locked: no other transaction adds items or seals it.
type openState struct {
	id          workqueue.RunID
	state       string
	generation  workqueue.Generation
	items       int64
	skipped     int64
	onDuplicate OnDuplicate
	sealedAt    *time.Time
	order       *workqueue.RunOrder // nil: its items have no lanes
}

const (
	// holdGate comes before every other lock of an add or seal. Nothing else locks it.
	holdGate = `SELECT 1 FROM run_add WHERE run_id = $1 AND key = '' FOR NO KEY UPDATE`

	// Without a lock: the conditional UPDATE at the end detects a concurrent cancel.
	readOpen = `
SELECT state, generation, items, skipped, on_duplicate, sealed_at, opened FROM batchrun WHERE id = $1`
)

// holdOpen locks the gate of a run, then reads the run. For a run not opened it returns a *StateError.
func holdOpen(ctx context.Context, tx pgx.Tx, run workqueue.RunID, op string) (*openState, error) {
	if _, err := tx.Exec(ctx, holdGate, run); err != nil {
		return nil, fmt.Errorf("hold the gate of run %s: %w", run, err)
	}
	o := &openState{id: run}
	var opened bool
	err := tx.QueryRow(ctx, readOpen, run).Scan(&o.state, &o.generation, &o.items, &o.skipped,
		&o.onDuplicate, &o.sealedAt, &opened)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("run %s: %w", run, workqueue.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("read run %s: %w", run, err)
	case !opened:
		return nil, &workqueue.StateError{Run: run, State: "one that was started with all its items", Op: op,
			Fix: "only a run that was opened takes items later; open one with: tranche run open"}
	}
	o.order, err = OrderOf(ctx, tx, run)
	return o, err
}

func (o *openState) cancelled(op string) error {
	return &workqueue.StateError{Run: o.id, State: "cancelled", Op: op, Fix: "open a new run"}
}

// blockBytes sums up the payloads of items, by the primary key of work_queue.
const blockBytes = `
SELECT ordinal / 8192 AS block, sum(octet_length(payload))::bigint FROM work_queue
WHERE run_id = $1 AND ordinal >= $2 AND ordinal < $3 GROUP BY 1 ORDER BY 1`

// insertOpenBlocks inserts blocks of every step, starting with number $4. Items of a step that needs others wait:
// they are in no plane. The rows are new, so nothing waits for them; the foreign key locks the run's steps.
const insertOpenBlocks = `
INSERT INTO work_block (run_id, step, block, size, payload_bytes, ready)
SELECT $1, st.step, $4::int + u.n - 1, u.size, u.bytes,
       CASE WHEN st.needs = '{}' THEN ~(~B'0'::bit(8192) >> u.size) ELSE B'0'::bit(8192) END
FROM run_step st, unnest($2::int[], $3::bigint[]) WITH ORDINALITY AS u (size, bytes, n)
WHERE st.run_id = $1
ORDER BY st.step, u.n`

// fill inserts blocks and tracker groups for a range of items, which starts and, unless last, ends with a block.
func (o *openState) fill(ctx context.Context, tx pgx.Tx, from, to int64) error {
	if from == to {
		return nil
	}
	first := int(from / bitfield.Size)
	var sizes []int
	var bytes []int64
	var block int
	var sum int64
	err := pg.Each(pg.Rows(ctx, tx, blockBytes, o.id, from, to), []any{&block, &sum}, func() {
		sizes = append(sizes, int(min(bitfield.Size, to-int64(block)*bitfield.Size)))
		bytes = append(bytes, sum)
	})
	if err == nil && int64(len(sizes)) != (to-from+bitfield.Size-1)/bitfield.Size {
		err = fmt.Errorf("items %d to %d lie in %d blocks: %w", from, to-1, len(sizes), workqueue.ErrFence)
	}
	if err != nil {
		return fmt.Errorf("sum up items %d to %d: %w", from, to-1, err)
	}
	if err := o.makeBlocks(ctx, tx, from, to, sizes, bytes); err != nil {
		return err
	}
	group, err := tracker.AddGroups(ctx, tx, uuid.UUID(o.id), sizes)
	if _, ended := errors.AsType[*tracker.StateError](err); ended {
		return o.cancelled("continue with")
	}
	if err == nil && group != first {
		err = fmt.Errorf("the tracker has %d groups before block %d: %w", group, first, workqueue.ErrFence)
	}
	return err
}

func (o *openState) makeBlocks(ctx context.Context, tx pgx.Tx, from, to int64, sizes []int, bytes []int64) error {
	first := workqueue.Block(from / bitfield.Size)
	if o.order == nil {
		_, err := tx.Exec(ctx, insertOpenBlocks, o.id, sizes, bytes, first)
		return pg.Wrap(err, "insert %d blocks", len(sizes))
	}
	heads, err := headsFirst(ctx, tx, o.id, from, to)
	if err != nil {
		return err
	}
	ready, held := inLine(sizes, heads)
	return makeBlocks(ctx, tx, o.id, first, sizes, bytes, ready, held)
}
