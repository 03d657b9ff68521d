package settle

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// heldColumns goes with scanHeld. Rows are locked in the order of their ids, as everywhere; run_step is only read.
const heldColumns = `
SELECT s.id, s.run_id, s.step, s.block, s.generation, s.mask, s.attempt, s.failures, s.cause, s.suspect,
       s.remaining, s.state, coalesce(s.answered, -1),
       s.error_code, s.error_message, s.error_retry, coalesce(s.root, s.id), coalesce(s.endpoint, st.endpoint),
       coalesce(s.parent, '00000000-0000-0000-0000-000000000000'),
       st.max_attempts, st.retry_backoff, coalesce(st.max_backoff, interval '0'), st.retry_codes, st.never_retry,
       coalesce(st.max_result, 0),
       EXISTS (SELECT FROM run_guard g WHERE g.run_id = s.run_id AND g.step = s.step AND g.tripped IS NULL)
FROM work_slice s JOIN run_step st USING (run_id, step)`

const (
	slicesByID = heldColumns + `
WHERE s.id = ANY($1)
ORDER BY s.id FOR NO KEY UPDATE OF s`

	// What a session had claimed and not yet sent. Sent slices outlive their node: any other records the reply.
	slicesOfSession = heldColumns + `
WHERE s.session_id = $1 AND s.state = 'claimed'
ORDER BY s.id FOR NO KEY UPDATE OF s`

	// Claimed by a session that has ended or expired. The slices are found first, in no order, by an index of live ones:
	// asked for the first few by their ids, the planner would go through all that ever were. Twice as many as are wanted:
	// others may hold some.
	slicesOfDeadSessions = `
WITH found AS MATERIALIZED (SELECT s.id FROM work_slice s WHERE ` + ofDeadSession + ` LIMIT 2 * $1)` + heldColumns + `
WHERE s.id = ANY (ARRAY(SELECT id FROM found)) AND ` + ofDeadSession + `
ORDER BY s.id LIMIT $1 FOR NO KEY UPDATE OF s SKIP LOCKED`

	ofDeadSession = `s.state = 'claimed' AND NOT EXISTS (
    SELECT 1 FROM node_session n
    WHERE n.id = s.session_id AND n.ended_at IS NULL AND n.expires_at > tranche_now())`

	// Sent through an incarnation of the streams that is gone: likewise, by work_slice_sent.
	slicesOfLostStreams = `
WITH found AS MATERIALIZED (
    SELECT s.id FROM work_slice s
    WHERE (s.state = 'sent') IS TRUE AND ` + ofLostStream + ` LIMIT 2 * $1)` + heldColumns + `
WHERE s.id = ANY (ARRAY(SELECT id FROM found)) AND s.state = 'sent' AND ` + ofLostStream + `
ORDER BY s.id LIMIT $1 FOR NO KEY UPDATE OF s SKIP LOCKED`

	ofLostStream = `s.stream_epoch < (SELECT epoch FROM stream_epoch WHERE name = 'streams')`

	// SlicesOfRun locks what is left of the slices of a run.
	SlicesOfRun = heldColumns + `
WHERE s.run_id = $1 AND s.state IN ('scheduled', 'claimed', 'sent')
ORDER BY s.id FOR NO KEY UPDATE OF s`

	// SlicesOverdue locks slices whose time is over.
	SlicesOverdue = heldColumns + `
WHERE s.id = ANY($1) AND s.state IN ('claimed', 'sent') AND s.deadline <= tranche_now()
ORDER BY s.id FOR NO KEY UPDATE OF s`
)

// LockSlices locks slices, in the order of their ids, and reads them.
func LockSlices(ctx context.Context, tx pgx.Tx, statement string, args ...any) ([]*plane.HeldSlice, error) {
	held, err := pg.Collect(ctx, tx, scanHeld, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("lock slices: %w", err)
	}
	return held, nil
}

func scanHeld(row pgx.CollectableRow) (*plane.HeldSlice, error) {
	h := &plane.HeldSlice{}
	var code, message *string
	var retry *bool
	err := row.Scan(&h.ID, &h.Run, &h.Step, &h.Block, &h.Generation, pgbits.Into(&h.Mask), &h.Attempt, &h.Failures,
		&h.Cause, &h.Suspect, pgbits.Into(&h.Remaining), &h.State, &h.Answered,
		&code, &message, &retry, &h.Root, &h.Endpoint, &h.Parent, &h.Policy.MaxAttempts, &h.Policy.Backoff,
		&h.Policy.MaxBackoff, &h.Policy.RetryCodes, &h.Policy.NeverRetry,
		&h.MaxResult, &h.Guarded)
	if code != nil && message != nil && retry != nil {
		h.Failure = &workqueue.SlotError{Code: *code, Message: *message, Retry: *retry}
	}
	return h, err
}
