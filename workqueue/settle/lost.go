package settle

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// maxLosses is how many times in a row a request that was acknowledged but not answered is reissued without penalty. A
// service that acknowledges and never answers looks just like a stream that loses replies: then the deadline decides.
const maxLosses = 3

// Unanswered is a slice sent a while ago without a complete reply.
type Unanswered struct {
	ID        workqueue.SliceID
	Endpoint  string
	StreamSeq int64 // place of its request in the work stream
}

// mayBeLost holds for slices sent in an epoch that may be lost: no message of their reply is quarantined, which
// would prove a reply, and they were not lost maxLosses times in a row.
const mayBeLost = `s.stream_epoch = $2
    AND NOT EXISTS (SELECT FROM quarantine q WHERE q.run_id = s.run_id AND q.slice_id = s.id)
    AND (s.cause <> '` + string(workqueue.CauseLost) + `' OR (
        WITH RECURSIVE back AS (
            SELECT s.parent AS parent, 1 AS losses
            UNION ALL
            SELECT p.parent, b.losses + 1 FROM back b JOIN work_slice p ON p.id = b.parent
            WHERE p.cause = '` + string(workqueue.CauseLost) + `' AND b.losses < $3)
        SELECT max(losses) FROM back) < $3)`

const (
	// sentAt uses work_slice_sent: it costs what it returns, however much was sent.
	sentAt = `
SELECT s.id, ` + sliceEndpoint + `, s.stream_seq
FROM work_slice s
WHERE (s.state = 'sent') IS TRUE AND s.stream_seq > $4 AND s.stream_seq < $5
    AND s.sent_at < tranche_now() - $1::interval AND ` + mayBeLost + `
ORDER BY s.stream_seq LIMIT $6`

	stillSent = `
SELECT s.id, ` + sliceEndpoint + `, s.stream_seq
FROM work_slice s
WHERE s.id = ANY($1) AND s.state = 'sent' AND s.stream_seq IS NOT NULL AND ` + mayBeLost
)

// Unanswered returns slices sent in the epoch, longer ago than a time, without a complete reply: those whose
// requests are between two positions in the work stream, in that order.
func (s Store) Unanswered(
	ctx context.Context, epoch int64, longer time.Duration, behind, before int64, limit int,
) ([]Unanswered, error) {
	return s.unanswered(ctx, sentAt, longer, epoch, maxLosses, behind, before, limit)
}

// StillUnanswered returns those of some slices that were sent in the epoch and have no complete reply.
func (s Store) StillUnanswered(ctx context.Context, epoch int64, ids []workqueue.SliceID) ([]Unanswered, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return s.unanswered(ctx, stillSent, ids, epoch, maxLosses)
}

func (s Store) unanswered(ctx context.Context, statement string, args ...any) (found []Unanswered, err error) {
	batch := &pgx.Batch{}
	batch.Queue(plane.PlanOnce)
	batch.Queue(statement, args...).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Unanswered])
		return err
	})
	err = s.db.Pool.SendBatch(ctx, batch).Close()
	return found, pg.Wrap(err, "read what is unanswered")
}

const slicesLost = heldColumns + `
WHERE s.id = ANY($1) AND s.state = 'sent' AND ` + mayBeLost + `
ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED`

// ReleaseLost reissues unanswered slices of an epoch whose request and reply no longer exist. Leader work.
func (s Store) ReleaseLost(
	ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID, epoch int64,
) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return s.releaseAsLeader(ctx, lease, slicesLost, []any{ids, epoch, maxLosses}, workqueue.CauseLost,
		workqueue.SlotError{Code: string(workqueue.CauseLost),
			Message: "the request was taken out of its stream, and no reply to it is there"})
}

// A service that is silent beyond a slice's deadline may hang on an item. Or its answer was lost, it was disconnected,
// or NATS or the nodes were unavailable. Only the first is the item's fault, and one silence does not show which it
// is. The difference is that the services kept answering other requests: [Store.Blamed].

func silent() workqueue.SlotError {
	return workqueue.SlotError{Code: "deadline", Message: "no reply came before the deadline", Retry: true}
}

// sentTogether is how much earlier a concurrent request may have been sent, since marks are written separately.
const sentTogether = time.Second

// othersAnswered uses work_slice_ended. Requests that nodes abandoned for services count as unanswered. A reply may
// precede the mark of its request as sent; the slice's creation then is the earliest time of sending.
const othersAnswered = `
SELECT s.id, bit_count(s.mask) = 1, bit_count(s.mask) = 1 AND s.cause = 'deadline' OR EXISTS (
    SELECT FROM work_slice o WHERE o.endpoint = s.endpoint AND o.ended_at > s.sent_at - $2::interval
        AND o.state = 'recorded' AND o.error_code IS DISTINCT FROM $3 AND ` + plane.AskedAt +
	` >= s.sent_at - $2::interval)
FROM work_slice s WHERE s.id = ANY ($1)`

// Blamed returns those of some slices whose silence counts against their items. The requests must have been with a
// service since before their deadline. Since they were sent, the endpoint's services answered others sent at the
// same time or later; or they did so the last time when the item was alone. For doubted slices this proves nothing,
// for example because JetStream was unavailable in between.
//
// Nothing is retried indefinitely: an item that is alone, after [patientProbes] silences alone, is blamed for the
// next one regardless of other answers; there may be no others.
func (s Store) Blamed(
	ctx context.Context, overdue []workqueue.SliceID, doubted map[workqueue.SliceID]bool,
) (map[workqueue.SliceID]bool, error) {
	blamed := map[workqueue.SliceID]bool{}
	if len(overdue) == 0 {
		return blamed, nil
	}
	var lone []workqueue.SliceID
	var id workqueue.SliceID
	var alone, answered bool
	err := pg.Each(pg.Rows(ctx, s.db.Pool, othersAnswered, overdue, sentTogether, workqueue.CodeDeliveries),
		[]any{&id, &alone, &answered}, func() {
			if alone {
				lone = append(lone, id)
			}
			blamed[id] = answered && !doubted[id]
		})
	if err != nil {
		return nil, fmt.Errorf("read what services answered besides %d overdue slices: %w", len(overdue), err)
	}
	known, err := pace.Blames(ctx, s.db.Pool, lone)
	for id, b := range known {
		blamed[id] = blamed[id] || b.Lone >= pace.PatientProbes
	}
	return blamed, err
}

// Expire ends overdue slices as a failure of their items and passes their items on. Leader work.
func (s Store) Expire(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseDeadline, silent())
}

// ExpireWithoutPenalty ends overdue slices whose silence is not shown to be their items' fault. A chunk is retried
// whole, and halved the second time; a single item is reissued. No item loses an attempt. Leader work.
func (s Store) ExpireWithoutPenalty(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseSilence, silent())
}

// ReleaseUnsent reissues overdue slices, without blame, that are in no stream and with no service. Leader work.
func (s Store) ReleaseUnsent(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseStreams, workqueue.SlotError{Code: "unsent",
		Message: "the request was not in the stream at the deadline"})
}

// ReleaseAcknowledged reissues overdue slices that a service acknowledged: its answer was lost. Leader work.
func (s Store) ReleaseAcknowledged(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseStreams, workqueue.SlotError{Code: "lost",
		Message: "a service acknowledged the request, but no reply came before the deadline"})
}

// ReissueRerouted reissues overdue slices that no service can receive, at an endpoint to which no more requests of
// their step go. Leader work.
func (s Store) ReissueRerouted(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) (int, error) {
	return s.expire(ctx, lease, ids, workqueue.CauseRerouted, workqueue.SlotError{Code: string(workqueue.CauseRerouted),
		Message: "no service had received the request, and requests go to another endpoint now"})
}

func (s Store) expire(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID, cause workqueue.Cause,
	e workqueue.SlotError,
) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return s.releaseAsLeader(ctx, lease, SlicesOverdue, []any{ids}, cause, e)
}

// heldColumns matches scanHeld. Rows are locked by ID, as everywhere; run_step is only read.
const heldColumns = `
SELECT s.id, s.run_id, s.step, s.block, s.generation, s.mask, s.attempt, s.failures, s.cause, s.suspect,
       s.remaining, s.state, coalesce(s.answered, -1),
       s.error_code, s.error_message, s.error_retry, coalesce(s.root, s.id), coalesce(s.endpoint, st.endpoint),
       coalesce(s.parent, '00000000-0000-0000-0000-000000000000'),
       st.max_attempts, st.retry_backoff, coalesce(st.max_backoff, interval '0'), st.retry_codes, st.no_retry_codes,
       coalesce(st.max_result, 0),
       EXISTS (SELECT FROM run_fail_fast g WHERE g.run_id = s.run_id AND g.step = s.step AND g.tripped IS NULL)
FROM work_slice s JOIN run_step st USING (run_id, step)`

const (
	slicesByID = heldColumns + `
WHERE s.id = ANY($1)
ORDER BY s.id FOR NO KEY UPDATE OF s`

	// What a session claimed and has not sent. Sent slices outlive their node: any other records the reply.
	slicesOfSession = heldColumns + `
WHERE s.session_id = $1 AND s.state = 'claimed'
ORDER BY s.id FOR NO KEY UPDATE OF s`

	// Claimed by a session that ended or expired. An index of live slices finds them first, unordered: with ORDER BY
	// id the planner would scan all slices that ever existed. Twice the limit, since some may be locked.
	slicesOfDeadSessions = `
WITH found AS MATERIALIZED (SELECT s.id FROM work_slice s WHERE ` + ofDeadSession + ` LIMIT 2 * $1)` + heldColumns + `
WHERE s.id = ANY (ARRAY(SELECT id FROM found)) AND ` + ofDeadSession + `
ORDER BY s.id LIMIT $1 FOR NO KEY UPDATE OF s SKIP LOCKED`

	ofDeadSession = `s.state = 'claimed' AND NOT EXISTS (
    SELECT 1 FROM node_session n
    WHERE n.id = s.session_id AND n.ended_at IS NULL AND n.expires_at > tranche_now())`

	// Sent through a lost incarnation of the streams; found in the same way, by work_slice_sent.
	slicesOfLostStreams = `
WITH found AS MATERIALIZED (
    SELECT s.id FROM work_slice s
    WHERE (s.state = 'sent') IS TRUE AND ` + ofLostStream + ` LIMIT 2 * $1)` + heldColumns + `
WHERE s.id = ANY (ARRAY(SELECT id FROM found)) AND s.state = 'sent' AND ` + ofLostStream + `
ORDER BY s.id LIMIT $1 FOR NO KEY UPDATE OF s SKIP LOCKED`

	ofLostStream = `s.stream_epoch < (SELECT epoch FROM stream_epoch WHERE name = 'streams')`

	// SlicesOfRun locks the live slices of a run.
	SlicesOfRun = heldColumns + `
WHERE s.run_id = $1 AND s.state IN ('scheduled', 'claimed', 'sent')
ORDER BY s.id FOR NO KEY UPDATE OF s`

	// SlicesOverdue locks slices past their deadline.
	SlicesOverdue = heldColumns + `
WHERE s.id = ANY($1) AND s.state IN ('claimed', 'sent') AND s.deadline <= tranche_now()
ORDER BY s.id FOR NO KEY UPDATE OF s`
)

// LockSlices locks and reads slices by ID order.
func LockSlices(ctx context.Context, tx pgx.Tx, statement string, args ...any) ([]*plane.HeldSlice, error) {
	held, err := pg.Collect(ctx, tx, scanHeld, statement, args...)
	return held, pg.Wrap(err, "lock slices")
}

func scanHeld(row pgx.CollectableRow) (*plane.HeldSlice, error) {
	h := &plane.HeldSlice{}
	var code, message *string
	var retry *bool
	err := row.Scan(&h.ID, &h.Run, &h.Step, &h.Block, &h.Generation, pgbits.Into(&h.Mask), &h.Attempt, &h.Failures,
		&h.Cause, &h.Suspect, pgbits.OrEmpty(&h.Remaining), &h.State, &h.Answered,
		&code, &message, &retry, &h.Root, &h.Endpoint, &h.Parent, &h.Policy.MaxAttempts, &h.Policy.Backoff,
		&h.Policy.MaxBackoff, &h.Policy.RetryCodes, &h.Policy.NoRetryCodes,
		&h.MaxResult, &h.FailFast)
	if code != nil && message != nil && retry != nil {
		h.Failure = &workqueue.SlotError{Code: *code, Message: *message, Retry: *retry}
	}
	return h, err
}
