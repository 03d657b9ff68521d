package workqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Hold says why nothing is claimed of a run. What is under way is recorded all the same, and may complete the run.
type Hold string

// The reasons of a hold.
const (
	HoldOperator  Hold = "operator"  // somebody paused it
	HoldThreshold Hold = "threshold" // more of its items failed than may
	HoldCanary    Hold = "canary"    // its sample has ended, and somebody has to approve
)

// runHold is a run as far as holds go. Its row is locked.
type runHold struct {
	id         RunID
	state      string
	generation Generation
	items      int64
	hold       Hold // empty: none
	detail     string
	at         *time.Time
	by         string
	maxFailed  string
	limit      *int64 // of failed items
	canary     string // canary_state
	failed     int64  // counted when it matters
}

// overLimit says what is wrong with a run that its threshold holds.
func (r *runHold) overLimit() string {
	return fmt.Sprintf("%s of %s items failed; the limit is %s (--max-failed %s)", grouped(r.failed), grouped(r.items),
		grouped(*r.limit), r.maxFailed)
}

// holding is a hold as it is put on runs.
type holding struct {
	hold   Hold
	detail string
	actor  string
}

const (
	setHolds = `
UPDATE batchrun SET hold = $2, hold_detail = $3, held_by = $4, held_at = clock_timestamp()
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
func holdRuns(ctx context.Context, tx pgx.Tx, runs []*runHold, h holding) error {
	return moveHolds(ctx, tx, runs, holdMove{
		statement: setHolds, args: []any{string(h.hold), plain(h.detail), plain(h.actor)},
		action: "pause", event: EventPaused, actor: h.actor, reason: h.detail, after: h,
	})
}

// freeRuns ends the holds of runs whose rows are locked.
func freeRuns(ctx context.Context, tx pgx.Tx, runs []*runHold, actor, reason string) error {
	return moveHolds(ctx, tx, runs, holdMove{
		statement: clearHolds, action: "resume", event: EventResumed, actor: actor, reason: reason,
	})
}

// holdMove is a change of holds, the same for all its runs.
type holdMove struct {
	statement string // takes the runs and args
	args      []any
	action    string
	event     EventKind
	actor     string
	reason    string
	after     holding
}

// moveHolds changes the holds of runs, with their audit rows and events, in one statement each: all runs may be many.
func moveHolds(ctx context.Context, tx pgx.Tx, runs []*runHold, m holdMove) error {
	if len(runs) == 0 {
		return nil
	}
	ids, events := make([]RunID, len(runs)), make([]uuid.UUID, len(runs))
	generations := make([]Generation, len(runs))
	before, after := make([]json.RawMessage, len(runs)), make([]json.RawMessage, len(runs))
	for i, r := range runs {
		ids[i], events[i], generations[i] = r.id, uuid.Must(uuid.NewV7()), r.generation
		before[i] = holdDocument(holding{r.hold, r.detail, r.by})
		after[i] = holdDocument(m.after)
	}
	tag, err := tx.Exec(ctx, m.statement, append([]any{ids}, m.args...)...)
	if err == nil && tag.RowsAffected() != int64(len(runs)) {
		err = fmt.Errorf("%d rows of %d: %w", tag.RowsAffected(), len(runs), errFence)
	}
	if err != nil {
		return fmt.Errorf("%s %d runs: %w", m.action, len(runs), err)
	}
	detail, err := json.Marshal(map[string]any{"reason": plain(m.reason), "hold": m.after.hold, "by": plain(m.actor)})
	if err != nil {
		return fmt.Errorf("%s %d runs: %w", m.action, len(runs), err)
	}
	batch := &pgx.Batch{}
	batch.Queue(insertAudits, plain(m.actor), m.action, detail, ids, before, after)
	batch.Queue(insertEvents, string(m.event), detail, events, ids, generations)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("note that %d runs changed (%s): %w", len(runs), m.action, err)
	}
	return noteCarriedOut(ctx, tx, CarriedOut{Action: m.action})
}

// holdDocument is a hold as the audit log keeps it.
func holdDocument(h holding) json.RawMessage {
	doc := map[string]any{"hold": nil}
	if h.hold != "" {
		doc = map[string]any{"hold": h.hold, "detail": plain(h.detail), "by": plain(h.actor)}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		panic(err) // strings only
	}
	return text
}

// grouped writes a number with separators, as people read it: 1,234,567.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
