package control

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Hold says why nothing is claimed of a run. What is under way is recorded all the same, and may complete the run.
type Hold string

// The reasons of a hold.
const (
	HoldOperator  Hold = "operator"       // somebody paused it
	HoldThreshold Hold = "threshold"      // more of its items failed than may
	HoldCanary    Hold = "canary"         // its canary has ended, and somebody has to approve
	HoldGuard     Hold = settle.HoldGuard // its first outcomes plainly failed
)

// RunHold is a run as far as holds go. Its row is locked.
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
	failed     int64  // counted when it matters
}

// overLimit says what is wrong with a run that its threshold holds.
func (r *RunHold) overLimit() string {
	return fmt.Sprintf("%s of %s items failed; the limit is %s (--max-failed %s)", Grouped(r.failed), Grouped(r.items),
		Grouped(*r.limit), r.maxFailed)
}

// holding is a hold as it is put on runs.
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
INSERT INTO audit_log (actor, action, run_id, detail, before, after)
SELECT $1, $2, u.run, $3, u.before, u.after FROM unnest($4::uuid[], $5::jsonb[], $6::jsonb[]) AS u (run, before, after)`

	insertEvents = `
INSERT INTO run_event (id, run_id, generation, kind, payload)
SELECT u.id, u.run, u.generation, $1, $2 FROM unnest($3::uuid[], $4::uuid[], $5::int[]) AS u (id, run, generation)`
)

// holdRuns holds runs whose rows are locked and that are not held yet.
func holdRuns(ctx context.Context, tx pgx.Tx, runs []*RunHold, h holding) error {
	return moveHolds(ctx, tx, runs, holdMove{
		statement: setHolds, args: []any{string(h.hold), pg.Plain(h.detail), pg.Plain(h.actor)},
		action: "pause", event: workqueue.EventPaused, actor: h.actor, reason: h.detail, after: h,
	})
}

// freeRuns ends the holds of runs whose rows are locked.
func freeRuns(ctx context.Context, tx pgx.Tx, runs []*RunHold, actor, reason string) error {
	return moveHolds(ctx, tx, runs, holdMove{
		statement: clearHolds, action: "resume", event: workqueue.EventResumed, actor: actor, reason: reason,
	})
}

// holdMove is a change of holds, the same for all its runs.
type holdMove struct {
	statement string // takes the runs and args
	args      []any
	action    string
	event     workqueue.EventKind
	actor     string
	reason    string
	after     holding
}

// moveHolds changes the holds of runs, with their audit rows and events, in one statement each: all runs may be many.
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
	tag, err := tx.Exec(ctx, m.statement, append([]any{ids}, m.args...)...)
	if err == nil && tag.RowsAffected() != int64(len(runs)) {
		err = fmt.Errorf("%d rows of %d: %w", tag.RowsAffected(), len(runs), workqueue.ErrFence)
	}
	if err != nil {
		return fmt.Errorf("%s %d runs: %w", m.action, len(runs), err)
	}
	detail, err := json.Marshal(map[string]any{"reason": pg.Plain(m.reason), "hold": m.after.hold,
		"by": pg.Plain(m.actor)})
	if err != nil {
		return fmt.Errorf("%s %d runs: %w", m.action, len(runs), err)
	}
	batch := &pgx.Batch{}
	batch.Queue(insertAudits, pg.Plain(m.actor), m.action, detail, ids, before, after)
	batch.Queue(insertEvents, string(m.event), detail, events, ids, generations)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("note that %d runs changed (%s): %w", len(runs), m.action, err)
	}
	return ledger.NoteCarriedOut(ctx, tx, workqueue.CarriedOut{Action: m.action})
}

// holdDocument is a hold as the audit log keeps it.
func holdDocument(h holding) json.RawMessage {
	doc := map[string]any{"hold": nil}
	if h.hold != "" {
		doc = map[string]any{"hold": h.hold, "detail": pg.Plain(h.detail), "by": pg.Plain(h.actor)}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		panic(err) // strings only
	}
	return text
}

// Grouped writes a number with separators, as people read it: 1,234,567.
func Grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Rearm changes what the next generation changes of a hold and a canary, and reports whether a sample begins. A run
// that had completed is held no more. A new canary takes the place of one that waits, and of its hold; what that one
// held back stays so until the new one has ended.
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
