package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Control is an operator's request for one run, or every run in progress.
type Control struct {
	Run    workqueue.RunID
	All    bool      // Run is then zero
	Step   string    // Approve: the step to start; empty: release what a canary holds
	Seen   time.Time // with Step: the start of its wait, as viewed; zero: any
	Reason string
	Actor  string
	Eyes   []string // Approve: further names of the actor
}

// Controlled is the outcome of a Control.
type Controlled struct {
	Runs    []workqueue.RunID `json:"runs" doc:"those that changed"`
	Skipped []SkippedRun      `json:"skipped" doc:"of all runs, those that could not change"` // one returns an error
	Items   int64             `json:"items" doc:"paused: in flight; approved: released; cancelled, resumed: no outcome"`
	Slices  int64             `json:"slices" doc:"paused: requests in flight; cancelled: requests withdrawn"`
	Paused  string            `json:"paused,omitempty" doc:"why the run is paused, and stays so"`
}

// SkippedRun is a run that an operation on all runs skipped.
type SkippedRun struct {
	Run workqueue.RunID `json:"run"`
	Why string          `json:"why"`
}

// MaxReasonBytes bounds a reason, which is shown and audited.
const MaxReasonBytes = 2000

func (c *Control) validate() error {
	if c.All == (c.Run != workqueue.RunID{}) {
		return errors.New("name one run, or all")
	}
	return CheckReason(c.Reason)
}

// CheckReason refuses a reason that is too long.
func CheckReason(reason string) error {
	if len(reason) > MaxReasonBytes {
		return workqueue.BadSetting("the reason has %d bytes, and at most %d are allowed; shorten it", len(reason),
			MaxReasonBytes)
	}
	return nil
}

// Rows are locked by ID and nothing is locked after them, so these need not be serialized with claims: one in progress
// ends within milliseconds, and the next sees the hold.
const (
	runHolds = `
SELECT id, state, generation, items, coalesce(hold, ''), hold_detail, held_at, held_by, max_failed, failed_limit,
       coalesce(canary_state, '')
FROM batchrun `

	readRun          = runHolds + `WHERE id = $1`
	lockRun          = readRun + ` FOR NO KEY UPDATE`
	lockRunsUnderWay = runHolds + `WHERE state IN ('loading', 'running')` + inSight + ` ORDER BY id FOR NO KEY UPDATE`
	lockRunsHeld     = runHolds + `WHERE hold IS NOT NULL AND state IN ('loading', 'running')` + inSight + `
ORDER BY id FOR NO KEY UPDATE`
	// inSight limits runs to the namespaces $1, unless NULL.
	inSight = ` AND ($1::text[] IS NULL OR namespace = ANY ($1))`

	outOfRuns = `
SELECT count(*), coalesce(sum(bit_count(remaining)), 0)::bigint FROM work_slice
WHERE run_id = ANY ($1) AND state IN ('claimed', 'sent')`
)

// LockHolds locks the named run, or with All the runs of a statement.
func LockHolds(ctx context.Context, tx pgx.Tx, c *Control, all string) ([]*RunHold, error) {
	statement, args := all, []any{workqueue.Namespaces(ctx)}
	if !c.All {
		statement, args = lockRun, []any{c.Run}
	}
	runs, err := pg.Collect(ctx, tx, scanHold, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("lock runs: %w", err)
	}
	if !c.All && len(runs) == 0 {
		return nil, fmt.Errorf("run %s: %w", c.Run, workqueue.ErrNotFound)
	}
	return runs, nil
}

func scanHold(row pgx.CollectableRow) (*RunHold, error) {
	r := &RunHold{}
	return r, row.Scan(&r.id, &r.state, &r.Generation, &r.items, &r.Hold, &r.Detail, &r.At, &r.By, &r.maxFailed,
		&r.limit, &r.Canary)
}

func readHold(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (*RunHold, error) {
	r, err := pg.One(ctx, tx, scanHold, readRun, run)
	return r, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "run %s", run)
}

// skips records a run that refuses an operation on all runs. False: the error ends the operation.
func (c *Control) skips(run workqueue.RunID, err error, out *Controlled) bool {
	refused, ok := errors.AsType[*workqueue.StateError](err)
	if ok && c.All {
		out.Skipped = append(out.Skipped, SkippedRun{run, "it is " + refused.State + "; " + refused.Fix})
	}
	return ok && c.All
}

func (c *Control) sort(runs []*RunHold, may func(*RunHold) error, out *Controlled) ([]*RunHold, error) {
	var chosen []*RunHold
	for _, r := range runs {
		err := may(r)
		switch {
		case err == nil:
			chosen = append(chosen, r)
			out.Runs = append(out.Runs, r.id)
		case !c.skips(r.id, err, out):
			return nil, err
		}
	}
	return chosen, nil
}

// Pause holds runs: nodes stop claiming them. Requests in flight are still recorded, and may complete a run. A
// loading run is held from its first item. Runs that start later are not held.
func (s Store) Pause(ctx context.Context, c Control) (out Controlled, err error) {
	if err := c.validate(); err != nil {
		return out, fmt.Errorf("pause: %w", err)
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out = Controlled{}
		runs, err := LockHolds(ctx, tx, &c, lockRunsUnderWay)
		if err != nil {
			return err
		}
		chosen, err := c.sort(runs, (*RunHold).mayPause, &out)
		if err != nil {
			return err
		}
		if err := holdRuns(ctx, tx, chosen, holding{HoldOperator, c.Reason, c.Actor}); err != nil {
			return err
		}
		return tx.QueryRow(ctx, outOfRuns, out.Runs).Scan(&out.Slices, &out.Items)
	})
	return out, pg.Wrap(err, "pause")
}

func (r *RunHold) mayPause() error {
	switch {
	case r.state != "loading" && r.state != "running":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "pause", Fix: "there is nothing to stop"}
	case r.Hold != "":
		return &workqueue.StateError{Run: r.id, State: r.paused(), Op: "pause", Fix: "nothing more of it is sent"}
	}
	return nil
}

func (r *RunHold) paused() string {
	text := "paused already"
	if r.By != "" {
		text += " by " + r.By
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}

// Resume ends holds, and continues a cancelled run that still exists, in its next generation. A run whose canary
// waits must be approved instead. A run over its failure limit is refused, since it would be held again immediately.
// maxFailed, unless nil, is a new threshold, only for one run; see [workqueue.FailedLimit].
func (s Store) Resume(ctx context.Context, c Control, maxFailed *string) (out Controlled, err error) {
	if err := c.validate(); err != nil {
		return out, fmt.Errorf("resume: %w", err)
	}
	if c.All && maxFailed != nil {
		return out, workqueue.BadSetting("max failed is set for one run at a time; name the run")
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out = Controlled{}
		if revived, err := s.revive(ctx, tx, &c, maxFailed, &out); err != nil || revived {
			return err
		}
		runs, err := LockHolds(ctx, tx, &c, lockRunsHeld)
		if err != nil {
			return err
		}
		for _, r := range runs {
			if err := r.prepare(ctx, tx, c.Actor, maxFailed); err != nil {
				return err
			}
		}
		chosen, err := c.sort(runs, c.mayResume, &out)
		if err != nil {
			return err
		}
		return moveHolds(ctx, tx, chosen, holdMove{
			statement: clearHolds, action: "resume", event: workqueue.EventResumed, actor: c.Actor, reason: c.Reason,
		})
	})
	return out, pg.Wrap(err, "resume")
}

func (r *RunHold) prepare(ctx context.Context, tx pgx.Tx, actor string, maxFailed *string) error {
	if maxFailed != nil && r.state == "loading" {
		return r.maySet()
	}
	if r.Hold == "" || r.state != "running" {
		return nil // mayResume decides
	}
	if maxFailed != nil {
		if err := r.setThreshold(ctx, tx, actor, *maxFailed); err != nil {
			return err
		}
	}
	if r.limit == nil {
		return nil
	}
	err := tx.QueryRow(ctx, countFailed, r.id).Scan(&r.failed)
	return pg.Wrap(err, "count failed items of run %s", r.id)
}

// mayResume refuses to resume a run held by its fail-fast limit unless it is named.
func (c *Control) mayResume(r *RunHold) error {
	if c.All && r.Hold == HoldFailFast {
		return &workqueue.StateError{Run: r.id, State: "paused by its fail-fast limit: " + r.Detail, Op: "resume",
			Fix: fmt.Sprintf("see why, and resume it with: tranche run resume %s", r.id)}
	}
	return r.mayResume()
}

func (r *RunHold) mayResume() error {
	switch {
	case r.state != "loading" && r.state != "running":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "resume", Fix: "nothing to resume"}
	case r.Hold == "":
		return &workqueue.StateError{Run: r.id, State: r.state + ", and not paused", Op: "resume",
			Fix: "there is nothing to do"}
	case r.Hold == HoldCanary:
		return &workqueue.StateError{Run: r.id, State: "paused for its canary: " + r.Detail, Op: "resume",
			Fix: fmt.Sprintf("release its other items with: tranche run approve %s", r.id)}
	case r.limit != nil && r.failed > *r.limit:
		return &workqueue.StateError{Run: r.id, State: "over its threshold: " + r.overLimit(), Op: "resume",
			Fix: fmt.Sprintf("it would be paused again. Allow more with: tranche run resume %s --max-failed N; or run "+
				"the failed items again first: tranche run rerun %s --failed", r.id, r.id)}
	}
	return nil
}

// Hold is why nothing of a run is claimed. Requests in flight are recorded anyway, and may complete the run.
type Hold string

// The reasons of a hold.
const (
	HoldOperator  Hold = "operator"          // paused by an operator
	HoldThreshold Hold = "threshold"         // too many items failed
	HoldCanary    Hold = "canary"            // its canary ended and needs approval
	HoldFailFast  Hold = settle.HoldFailFast // a fail-fast limit was reached
)

// RunHold is the part of a run's row about holds. The row is locked.
type RunHold struct {
	id         workqueue.RunID
	state      string
	Generation workqueue.Generation
	items      int64
	Hold       Hold // empty: none
	Detail     string
	At         *time.Time
	By         string
	maxFailed  string
	limit      *int64 // of failed items
	Canary     string // canary_state
	failed     int64  // counted when needed
}

func (r *RunHold) overLimit() string {
	return fmt.Sprintf("%s of %s items failed; the limit is %s (--max-failed %s)", Grouped(r.failed), Grouped(r.items),
		Grouped(*r.limit), r.maxFailed)
}

type holding struct {
	hold   Hold
	detail string
	actor  string
}

const (
	setHolds = `
UPDATE batchrun SET hold = $2, hold_detail = $3, held_by = $4, held_at = tranche_now()
WHERE id = ANY ($1) AND hold IS NULL AND state IN ('loading', 'running')`

	clearHolds = `
UPDATE batchrun SET hold = NULL, hold_detail = '', held_by = '', held_at = NULL
WHERE id = ANY ($1) AND hold IS NOT NULL AND state IN ('loading', 'running')`

	insertAudits = `
INSERT INTO audit_log (actor, action, run_id, detail, origin, before, after)
SELECT $1, $2, u.run, $3, $7, u.before, u.after
FROM unnest($4::uuid[], $5::jsonb[], $6::jsonb[]) AS u (run, before, after)`

	insertEvents = `
INSERT INTO run_event (id, run_id, generation, kind, payload)
SELECT u.id, u.run, u.generation, $1, $2 FROM unnest($3::uuid[], $4::uuid[], $5::int[]) AS u (id, run, generation)`
)

func holdRuns(ctx context.Context, tx pgx.Tx, runs []*RunHold, h holding) error {
	return moveHolds(ctx, tx, runs, holdMove{
		statement: setHolds, args: []any{string(h.hold), pg.Plain(h.detail), pg.Plain(h.actor)},
		action: "pause", event: workqueue.EventPaused, actor: h.actor, reason: h.detail, after: h,
	})
}

type holdMove struct {
	statement string // takes the runs and args
	args      []any
	action    string
	event     workqueue.EventKind
	actor     string
	reason    string
	after     holding
}

// moveHolds changes the holds of runs, with audit entries and events, by one statement each.
func moveHolds(ctx context.Context, tx pgx.Tx, runs []*RunHold, m holdMove) error {
	if len(runs) == 0 {
		return nil
	}
	ids, events := make([]workqueue.RunID, len(runs)), make([]uuid.UUID, len(runs))
	generations := make([]workqueue.Generation, len(runs))
	before, after := make([]json.RawMessage, len(runs)), make([]json.RawMessage, len(runs))
	for i, r := range runs {
		ids[i], events[i], generations[i] = r.id, uuid.Must(uuid.NewV7()), r.Generation
		before[i] = holdDocument(holding{r.Hold, r.Detail, r.By})
		after[i] = holdDocument(m.after)
	}
	err := pg.CheckRows(len(runs))(tx.Exec(ctx, m.statement, append([]any{ids}, m.args...)...))
	if err != nil {
		return fmt.Errorf("%s %d runs: %w", m.action, len(runs), err)
	}
	detail := map[string]any{"reason": pg.Plain(m.reason), "hold": m.after.hold, "by": pg.Plain(m.actor)}
	batch := &pgx.Batch{}
	batch.Queue(insertAudits, pg.Plain(m.actor), m.action, detail, ids, before, after,
		ledger.Origin(ctx))
	batch.Queue(insertEvents, string(m.event), detail, events, ids, generations)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("note that %d runs changed (%s): %w", len(runs), m.action, err)
	}
	return ledger.NoteCarriedOut(ctx, tx, workqueue.CarriedOut{Action: m.action})
}

func holdDocument(h holding) json.RawMessage {
	doc := map[string]any{"hold": nil}
	if h.hold != "" {
		doc = map[string]any{"hold": h.hold, "detail": pg.Plain(h.detail), "by": pg.Plain(h.actor)}
	}
	text, _ := json.Marshal(doc) // texts only
	return text
}

// Grouped formats a number with separators: 1,234,567.
func Grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Rearm applies the next generation to a hold and canary, and reports whether a sample begins. It ends a completed
// run's hold. A new canary replaces a waiting one and its hold; its held items stay so until the new one ends.
func (r *RunHold) Rearm(canary, held bool) (sampling bool) {
	inCanary := r.Canary == "sampling" || r.Canary == "waiting"
	if r.state == "completed" && inCanary { // it ended with its sample
		r.Canary, inCanary = "passed", false
	}
	if sampling = held || canary && inCanary; sampling {
		r.Canary = "sampling"
	}
	if r.state == "completed" || r.Hold == HoldCanary && sampling {
		r.Hold, r.Detail, r.At, r.By = "", "", nil, ""
	}
	return sampling
}
