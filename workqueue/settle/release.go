package settle

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
)

// release ends the live slices that the statement selects and passes their remaining items on.
func (s Store) release(ctx context.Context, tx pgx.Tx, statement string, args []any, cause workqueue.Cause,
	e workqueue.SlotError,
) (*settlement, error) {
	held, err := LockSlices(ctx, tx, statement, args...)
	if err != nil || len(held) == 0 {
		return &settlement{}, err
	}
	spared, err := sparedOf(ctx, tx, held, cause, e)
	if err != nil {
		return nil, err
	}
	set := newSettlement(&pg.CopyRows{}, database.Kept[plane.GraphCache](s.db))
	for _, h := range held {
		switch {
		case !h.Live():
			continue
		case spared[h.ID]:
			set.pass(h, h.Remaining, workqueue.CauseBreaker, e)
		default:
			set.pass(h, h.Remaining, cause, e)
		}
		if of := set.of(h.Endpoint); cause == workqueue.CauseDeadline || cause == workqueue.CauseSilence {
			of.Expired++
		} else {
			of.Lost++
		}
		set.end(h, "expired", "", &e)
	}
	if err := set.apply(ctx, tx); err != nil {
		return nil, fmt.Errorf("release %d slices (%s): %w", len(held), cause, err)
	}
	return set, nil
}

// releaseAsLeader is release in a leader's transaction. It returns the number of slices.
func (s Store) releaseAsLeader(ctx context.Context, lease workqueue.Lease, statement string, args []any,
	cause workqueue.Cause, e workqueue.SlotError,
) (int, error) {
	var set *settlement
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		set, err = s.release(ctx, tx, statement, args, cause, e)
		return err
	})
	if err != nil {
		return 0, err
	}
	s.tell(set)
	return len(set.ended), nil
}

// sparedOf returns the slices that fail because their endpoint is down.
func sparedOf(
	ctx context.Context, tx pgx.Tx, held []*plane.HeldSlice, cause workqueue.Cause, e workqueue.SlotError,
) (map[workqueue.SliceID]bool, error) {
	if !cause.ItemsAtFault() {
		return nil, nil
	}
	var fails []pace.Failing
	for _, h := range held {
		f := pace.Failing{Slice: h, How: pace.EndedFailed, Why: e}
		f.Why.Retry = h.Policy.Retries(e)
		if h.Live() && f.TellsOfAnOutage() {
			fails = append(fails, f)
		}
	}
	return pace.Outages(ctx, tx, fails)
}

const releaseBatch = 2000

// ReleaseDeadSessions reissues slices that dead nodes claimed and had not sent. It returns their number. Leader work.
func (s Store) ReleaseDeadSessions(ctx context.Context, lease workqueue.Lease) (int, error) {
	return s.sweep(ctx, lease, slicesOfDeadSessions, workqueue.CauseSession, workqueue.SlotError{Code: "session",
		Message: "the node that had claimed the slice is gone"})
}

// ReleaseLostStreams reissues slices sent through lost streams. It returns their number. Leader work.
func (s Store) ReleaseLostStreams(ctx context.Context, lease workqueue.Lease) (int, error) {
	return s.sweep(ctx, lease, slicesOfLostStreams, workqueue.CauseStreams, workqueue.SlotError{Code: "streams",
		Message: "the stream that carried the request or its reply was lost"})
}

// sweep releases what a statement selects, in transactions of releaseBatch slices, until none remain or ctx ends.
func (s Store) sweep(ctx context.Context, lease workqueue.Lease, statement string, cause workqueue.Cause,
	e workqueue.SlotError,
) (int, error) {
	for total := 0; ; {
		n, err := s.releaseAsLeader(ctx, lease, statement, []any{releaseBatch}, cause, e)
		total += n
		if err != nil || n < releaseBatch {
			return total, err
		}
	}
}

// Undelivered is the requests of an endpoint in the stream that, as far as is known, no service has received.
type Undelivered struct {
	Endpoint string
	Epoch    int64 // of the stream
	First    int64 // stream position of the first
}

// sliceEndpoint reads the step only for slices made before slices had endpoints.
const sliceEndpoint = `coalesce(s.endpoint,
    (SELECT st.endpoint FROM run_step st WHERE st.run_id = s.run_id AND st.step = s.step))`

const undelivered = `
SELECT ` + sliceEndpoint + `, s.stream_epoch, min(s.stream_seq)
FROM work_slice s
WHERE s.state = 'sent' AND s.delivered_at IS NULL AND s.stream_seq IS NOT NULL AND s.stream_epoch IS NOT NULL
GROUP BY 1, 2`

// Undelivered returns the requests that wait for services.
func (s Store) Undelivered(ctx context.Context) ([]Undelivered, error) {
	waiting, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Undelivered], undelivered)
	return waiting, pg.Wrap(err, "find requests that wait")
}

// handedOut locks by ID, as everywhere; locked rows are left to the next sweep.
const handedOut = `
WITH handed AS MATERIALIZED (
    SELECT s.id, st.request_timeout
    FROM work_slice s JOIN run_step st USING (run_id, step)
    JOIN unnest($1::text[], $2::bigint[]) AS u (endpoint, up_to) ON u.endpoint = coalesce(s.endpoint, st.endpoint)
    WHERE s.state = 'sent' AND s.delivered_at IS NULL AND s.stream_seq <= u.up_to AND s.stream_epoch = $3
    ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED)
UPDATE work_slice s SET delivered_at = tranche_now(), deadline = tranche_now() + handed.request_timeout
FROM handed WHERE s.id = handed.id AND s.state = 'sent'`

// Handed is how far an endpoint's services have come in the work stream.
type Handed struct {
	Endpoint string
	UpTo     int64
}

// HandedOut records that requests up to these stream positions are with services: their time starts now. Leader work.
func (s Store) HandedOut(ctx context.Context, lease workqueue.Lease, at []Handed, epoch int64) error {
	if len(at) == 0 {
		return nil
	}
	names, places := make([]string, len(at)), make([]int64, len(at))
	for i, h := range at {
		names[i], places[i] = h.Endpoint, h.UpTo
	}
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, handedOut, names, places, epoch)
	return pg.Wrap(err, "note what %d endpoints were handed", len(at))
}

// Overdue is a slice past its deadline.
type Overdue struct {
	ID           workqueue.SliceID
	Endpoint     string
	StreamSeq    int64 // stream position of its request; 0 if never marked as sent
	StreamsEpoch int64
	Handed       bool // a service received the request
	// HandedFor is for how long at most: the leader notices it up to noticedWithin later.
	HandedFor time.Duration
	Spent     bool // issued so often that any outcome now counts
	Rerouted  bool // requests of its step go to another endpoint now
}

// Sent returns its place in the stream.
func (o *Overdue) Sent() workqueue.Sent {
	return workqueue.Sent{ID: o.ID, StreamSeq: o.StreamSeq, StreamsEpoch: o.StreamsEpoch}
}

// noticedWithin is the longest time until the leader sees that a service received a request: it checks every second,
// unless NATS is unavailable or another leader takes over.
const noticedWithin = 10 * time.Second

// overdue uses work_slice_late.
const overdue = `
SELECT s.id, coalesce(s.endpoint, st.endpoint), coalesce(s.stream_seq, 0), coalesce(s.stream_epoch, 0),
       s.delivered_at IS NOT NULL,
       CASE WHEN s.delivered_at IS NULL THEN interval '0'
            ELSE least(tranche_now() - s.delivered_at + $3, tranche_now() - s.created_at) END, s.attempt >= $2,
       coalesce(s.endpoint, st.endpoint) <> st.endpoint AND (
           SELECT e.canary = s.endpoint AND (e.canary_share = 100 OR e.canary_share > 0 AND e.canary_has_listeners)
           FROM endpoint_setting e WHERE e.endpoint = st.endpoint COLLATE "C") IS NOT TRUE
       OR coalesce(s.endpoint, st.endpoint) = st.endpoint AND EXISTS (
           SELECT FROM endpoint_setting e WHERE e.endpoint = st.endpoint COLLATE "C" AND e.canary_share = 100)
FROM work_slice s JOIN run_step st USING (run_id, step)
WHERE (s.state IN ('claimed', 'sent') AND s.deadline IS NOT NULL) IS TRUE AND s.deadline <= (SELECT tranche_now())
ORDER BY s.deadline LIMIT $1`

// OverdueSlices returns live slices past their deadline, the longest overdue first.
func (s Store) OverdueSlices(ctx context.Context, limit int) ([]Overdue, error) {
	rows := pg.Rows(ctx, s.db.Pool, overdue, limit, plane.CountedIssues, noticedWithin)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Overdue])
	return found, pg.Wrap(err, "read overdue slices")
}

// expireRerouted is about the undelivered requests at a canary that was pulled back or has no services, and at an
// endpoint all of whose requests go to the canary, by work_slice_busy. Locked rows are left to the next sweep.
const expireRerouted = `
WITH rerouted AS MATERIALIZED (
    SELECT s.id FROM endpoint_setting e CROSS JOIN LATERAL (
        SELECT s.id FROM work_slice s
        WHERE s.endpoint = CASE e.canary_share WHEN 100 THEN e.endpoint ELSE e.canary END
          AND ` + plane.SliceInFlight + ` AND s.state = 'sent' AND s.delivered_at IS NULL
          AND s.deadline > (SELECT tranche_now())
          AND (SELECT st.endpoint FROM run_step st WHERE st.run_id = s.run_id AND st.step = s.step) = e.endpoint
        OFFSET 0) f JOIN work_slice s USING (id)
    WHERE e.canary IS NOT NULL AND (e.canary_share IN (0, 100) OR NOT e.canary_has_listeners)
    ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED)
UPDATE work_slice s SET deadline = tranche_now()
FROM rerouted WHERE s.id = rerouted.id AND s.state = 'sent' AND s.delivered_at IS NULL`

// ExpireRerouted makes requests overdue whose step no longer sends there, see [Overdue]. Leader work.
func (s Store) ExpireRerouted(ctx context.Context, lease workqueue.Lease) error {
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, expireRerouted)
	return pg.Wrap(err, "expire undelivered requests of rerouted steps")
}

const extendSlices = `
UPDATE work_slice s SET deadline = tranche_now() + st.request_timeout
FROM run_step st
WHERE s.id = ANY($1) AND s.state = 'sent' AND st.run_id = s.run_id AND st.step = s.step`

const lockSliceIDs = `
SELECT count(*) FROM (SELECT 1 FROM work_slice WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE) locked`

// Extend gives sent slices a new deadline because no service has received their requests. Leader work.
func (s Store) Extend(ctx context.Context, lease workqueue.Lease, ids []workqueue.SliceID) error {
	if len(ids) == 0 {
		return nil
	}
	return session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSliceIDs, ids); err != nil {
			return fmt.Errorf("lock %d slices: %w", len(ids), err)
		}
		_, err := tx.Exec(ctx, extendSlices, ids)
		return pg.Wrap(err, "extend %d slices", len(ids))
	})
}

// CodePostponed marks a scheduled slice that could not be published. The next claim clears it.
const CodePostponed = "postponed"

// Postpone returns a claimed slice that its node could not publish: it is claimed again under the same ID after the
// delay. Why is shown until then. The caller knows that no request of the slice is in the stream.
func (s Store) Postpone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, delay time.Duration,
	why error,
) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(lockSliceIDs, []workqueue.SliceID{id})
		batch.Queue(postponeSlice, id, session, delay, CodePostponed, pg.Plain(why.Error()))
		return tx.SendBatch(ctx, batch).Close()
	})
	return pg.Wrap(err, "postpone slice %s", id)
}

// A statement before locks the slice, so the endpoint is its step's current one; see insertSlices.
const postponeSlice = `
UPDATE work_slice s
SET state = 'scheduled', session_id = NULL, deadline = NULL, not_before = tranche_now() + $3,
    error_code = $4, error_message = $5, endpoint = (
        SELECT st.endpoint FROM run_step st WHERE st.run_id = s.run_id AND st.step = s.step)
WHERE s.id = $1 AND s.session_id = $2 AND s.state = 'claimed'`

// GiveUpClaim expires a claimed slice that was perhaps published: the next sweep reissues it with a new ID.
func (s Store) GiveUpClaim(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID) error {
	_, err := s.db.Pool.Exec(ctx, giveUpClaim, id, session)
	return pg.Wrap(err, "release the claim of slice %s", id)
}

const giveUpClaim = `
UPDATE work_slice SET deadline = tranche_now() WHERE id = $1 AND session_id = $2 AND state = 'claimed'`

// TooMuch is why a slice is split whose request would exceed the server's limit.
const TooMuch = "its items are too much for one request"

// Split replaces a slice with pieces. The masks must be disjoint and together equal the slice's. The first piece stays
// claimed by the session; the rest become claimable, since only a claim checks the limits for another request. It
// returns the first piece, or nil if the session lost it.
func (s Store) Split(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, masks []bitfield.Set,
	timeout time.Duration, why string,
) (first *workqueue.Slice, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		first = nil
		held, err := LockSlices(ctx, tx, slicesByID, []workqueue.SliceID{id})
		if err != nil || len(held) == 0 || held[0].State != "claimed" {
			return err
		}
		h := held[0]
		if !partition(h.Mask, masks) {
			return fmt.Errorf("%d pieces do not add up to its %d items: %w", len(masks), h.Mask.Count(), workqueue.ErrFence)
		}
		set := newSettlement(&pg.CopyRows{}, database.Kept[plane.GraphCache](s.db))
		for _, mask := range masks {
			if mask = mask.And(h.Remaining); mask.Empty() {
				continue // removed by a reset since the claim
			}
			piece := madeSlice{parent: h.ID, state: "scheduled"}
			piece.Slice = workqueue.Slice{ID: workqueue.NewSliceID(), Run: h.Run, Step: h.Step, Block: h.Block,
				Generation: h.Generation, Mask: mask,
				Attempt: h.Attempt, Failures: h.Failures, Cause: workqueue.CauseSplit, Suspect: h.Suspect, Root: h.Root,
				Endpoint: h.Endpoint}
			if first == nil {
				piece.state, piece.session, piece.timeout = "claimed", session, timeout
				first = &piece.Slice
			}
			set.made = append(set.made, piece)
		}
		h.Remaining = bitfield.Set{}
		set.end(h, "split", "", &workqueue.SlotError{Code: "split", Message: why})
		return set.apply(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("split slice %s: %w", id, err)
	}
	return first, nil
}

// partition reports whether masks are disjoint, not empty, and together equal the whole.
func partition(whole bitfield.Set, masks []bitfield.Set) bool {
	for i := range masks {
		if masks[i].Empty() || !whole.Contains(&masks[i]) {
			return false
		}
		whole = whole.AndNot(masks[i])
	}
	return whole.Empty()
}

// EndSession ends a session, releases in one transaction what it claimed and has not sent, and returns the number.
func (s Store) EndSession(ctx context.Context, id workqueue.SessionID) (int, error) {
	var set *settlement
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, ledger.EndSession, id); err != nil {
			return err
		}
		var err error
		set, err = s.release(ctx, tx, slicesOfSession, []any{id}, workqueue.CauseHandBack,
			workqueue.SlotError{Code: "handback", Message: "the node that had claimed the slice stopped"})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("end session %s: %w", id, err)
	}
	s.tell(set)
	return len(set.ended), nil
}
