package start

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// OnOverdue says what is done with an open run that was not sealed in time. It is reported in any case.
type OnOverdue string

// What to do with overdue runs.
const (
	OverdueReport OnOverdue = "report" // no more than that, for AbandonedAfter: see there
	OverdueSeal   OnOverdue = "seal"
	OverdueCancel OnOverdue = "cancel"
)

// The time that an open run has until its seal.
const (
	DefaultSealWithin = 24 * time.Hour
	MaxSealWithin     = 366 * 24 * time.Hour
)

// AbandonedAfter is how long an open run that is overdue, and that nobody paused, waits for somebody to do anything
// with it: to add items, to change it, to write a note, or to answer requests of it. Then it is cancelled, also when it
// was opened with OverdueReport.
const AbandonedAfter = 7 * 24 * time.Hour

// OpenRequest describes a run that gets its items later, by [Store.Add].
type OpenRequest struct {
	LoadRequest

	SealWithin time.Duration // until it is overdue; 0: DefaultSealWithin
	OnOverdue  OnOverdue     // empty: OverdueReport
}

// Opened is a run that was opened.
type Opened struct {
	Run      workqueue.RunID
	SealBy   time.Time
	Existing bool // the idempotency key was known: this is the run that was opened with it
}

// openRun goes on where insertRun left off, in its transaction. A number of failed items limits the run at once, a part
// of them from the seal on, when it is known how many there are.
const openRun = `
UPDATE batchrun
SET state = 'running', opened = true, seal_by = tranche_now() + $2::interval, on_overdue = $3, on_duplicate = $4,
    failed_limit = $5, started_at = tranche_now(), loader_session = NULL
WHERE id = $1 AND state = 'loading'
RETURNING seal_by`

// makeGate makes the row that adds and the seal of an open run take turns by. It is the run's entry in run_add without
// a key, which no add has.
const makeGate = `INSERT INTO run_add (run_id, key, digest, ordinal, items) VALUES ($1, '', '', 0, 0)`

// OpenRun makes a run without items that takes them until it is sealed. It is running from the start: what has been
// added is worked on as soon as a block of it is full, and the rest from the seal on. A canary is refused, for what it
// is a sample of is not known.
func (s Store) OpenRun(ctx context.Context, req OpenRequest) (Opened, error) {
	if err := req.check(); err != nil {
		return Opened{}, err
	}
	if known, err := s.openedByKey(ctx, &req); err != nil || known.Existing {
		return known, err
	}
	var out Opened
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = req.open(ctx, tx, &loader{store: s.db, req: req.LoadRequest, run: workqueue.NewRunID()})
		return err
	})
	if pg.IsUniqueViolation(err, "batchrun_idempotency_key_key") { // another one with the key was faster
		return s.openedByKey(ctx, &req)
	}
	if err != nil {
		return Opened{}, fmt.Errorf("open run: %w", err)
	}
	return out, nil
}

func (req *OpenRequest) check() error {
	if req.OnDuplicate == "" {
		req.OnDuplicate = DuplicateError
	}
	if req.SealWithin == 0 {
		req.SealWithin = DefaultSealWithin
	}
	if req.OnOverdue == "" {
		req.OnOverdue = OverdueReport
	}
	switch {
	case req.Canary > 0:
		return &workqueue.SettingError{Detail: "" +
			"an open run cannot have a canary: what it would be a sample of is not known before the seal; " +
			"leave the canary out, or start the run with all its items"}
	case req.SealWithin < time.Second || req.SealWithin > MaxSealWithin:
		return &workqueue.SettingError{Detail: fmt.Sprintf("seal within is %s; it must be from 1s to %s", req.SealWithin,
			MaxSealWithin)}
	}
	switch req.OnOverdue {
	case OverdueReport, OverdueSeal, OverdueCancel:
		return req.validate()
	default:
		return &workqueue.SettingError{Detail: fmt.Sprintf("on overdue is %.40q; it must be report, seal or cancel",
			req.OnOverdue)}
	}
}

func (req *OpenRequest) open(ctx context.Context, tx pgx.Tx, l *loader) (Opened, error) {
	out := Opened{Run: l.run}
	if err := l.insertRun(ctx, tx); err != nil {
		return out, err
	}
	batch := &pgx.Batch{}
	batch.Queue(pace.MakePaces, l.run)
	req.queueGuards(batch, l.run)
	if err := pg.Leave(ctx, tx, batch); err != nil {
		return out, fmt.Errorf("keep the paces of its endpoints, and guard its steps: %w", err)
	}
	if err := tracker.Open(ctx, tx, uuid.UUID(l.run), "run"); err != nil {
		return out, err
	}
	limit, err := limitWhileOpen(req.MaxFailed)
	if err != nil {
		return out, err
	}
	err = tx.QueryRow(ctx, openRun, l.run, req.SealWithin, string(req.OnOverdue), string(req.OnDuplicate), limit).
		Scan(&out.SealBy)
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
		map[string]any{"plan": req.Plan, "items": 0, "open": true, "seal_by": out.SealBy})
}

// limitWhileOpen is the limit of failed items of a run whose items are still coming: nil when it is a part of them.
func limitWhileOpen(maxFailed string) (*int64, error) {
	limit, limited, err := workqueue.FailedLimit(maxFailed, 0)
	if err != nil || !limited || maxFailed[len(maxFailed)-1] == '%' {
		return nil, err
	}
	return &limit, nil
}

const openedByKey = `
SELECT id, opened, seal_by, plan, spec = $2 AND params = $3
FROM batchrun WHERE idempotency_key = $1`

func (s Store) openedByKey(ctx context.Context, req *OpenRequest) (Opened, error) {
	if req.IdempotencyKey == "" {
		return Opened{}, nil
	}
	out := Opened{Existing: true}
	var opened, same bool
	var plan string
	var sealBy *time.Time
	err := s.db.Pool.QueryRow(ctx, openedByKey, req.IdempotencyKey, req.spec(), req.params()).
		Scan(&out.Run, &opened, &sealBy, &plan, &same)
	op := fmt.Sprintf("use idempotency key %q for", req.IdempotencyKey)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Opened{}, nil
	case err != nil:
		return Opened{}, fmt.Errorf("look up idempotency key %q: %w", req.IdempotencyKey, err)
	case !opened:
		return Opened{}, &workqueue.StateError{Run: out.Run, State: "one that was started with all its items", Op: op,
			Fix: "use another key to open a run"}
	case !same:
		return Opened{}, &workqueue.StateError{Run: out.Run, State: "of plan " + plan + " with other settings", Op: op,
			Fix: "use another key for another run"}
	}
	if sealBy != nil {
		out.SealBy = *sealBy
	}
	return out, nil
}
