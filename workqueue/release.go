package workqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
)

// release ends the live slices that the statement selects and hands their remaining bits on. It returns how many there
// were.
func release(ctx context.Context, tx pgx.Tx, statement string, args []any, cause Cause, e SlotError) (int, error) {
	held, err := lockSlices(ctx, tx, statement, args...)
	if err != nil || len(held) == 0 {
		return 0, err
	}
	s := newSettlement(&copyRows{})
	for _, h := range held {
		if h.live() {
			s.pass(h, h.remaining, cause, e)
			s.end(h, "expired", "", &e)
		}
	}
	if err := s.apply(ctx, tx); err != nil {
		return 0, fmt.Errorf("release %d slices (%s): %w", len(held), cause, err)
	}
	return len(s.ended), nil
}

// ReleaseDeadSessions issues again what was claimed by nodes that are gone and had not been sent. Leader work.
func (s *Store) ReleaseDeadSessions(ctx context.Context, lease Lease) (n int, err error) {
	err = s.asLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		n, err = release(ctx, tx, slicesOfDeadSessions, nil, CauseSession, SlotError{Code: "session",
			Message: "the node that had claimed the slice is gone"})
		return err
	})
	return n, err
}

// ReleaseLostPipe issues again what was sent through streams that are gone. Leader work.
func (s *Store) ReleaseLostPipe(ctx context.Context, lease Lease) (n int, err error) {
	err = s.asLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		n, err = release(ctx, tx, slicesOfLostPipe, nil, CausePipe, SlotError{Code: "pipe",
			Message: "the stream that carried the request or its reply was lost"})
		return err
	})
	return n, err
}

// Overdue is a slice whose deadline has passed.
type Overdue struct {
	ID        SliceID
	Endpoint  string
	StreamSeq int64 // place of its request in the work stream; 0 when it was never marked as sent
	PipeEpoch int64
}

const overdue = `
SELECT s.id, st.endpoint, coalesce(s.stream_seq, 0), coalesce(s.pipe_epoch, 0)
FROM work_slice s JOIN run_step st USING (run_id, step)
WHERE s.state IN ('claimed', 'sent') AND s.deadline <= clock_timestamp()
ORDER BY s.id LIMIT $1`

// OverdueSlices returns live slices whose deadline has passed. Whether a slice is to expire depends on whether its
// request was ever handed to a service, which the caller asks JetStream.
func (s *Store) OverdueSlices(ctx context.Context, limit int) ([]Overdue, error) {
	rows, err := s.pool.Query(ctx, overdue, limit)
	if err != nil {
		return nil, fmt.Errorf("read overdue slices: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Overdue])
	if err != nil {
		return nil, fmt.Errorf("read overdue slices: %w", err)
	}
	return found, nil
}

// Expire ends overdue slices and hands their bits on, as a failure of the items. Leader work.
func (s *Store) Expire(ctx context.Context, lease Lease, ids []SliceID) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	err = s.asLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		n, err = release(ctx, tx, slicesOverdue, []any{ids}, CauseDeadline, SlotError{Code: "deadline",
			Message: "no reply came before the deadline"})
		return err
	})
	return n, err
}

// ReleaseUnsent issues overdue slices again that were never marked as sent: their items are not to blame. Leader work.
func (s *Store) ReleaseUnsent(ctx context.Context, lease Lease, ids []SliceID) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	err = s.asLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		n, err = release(ctx, tx, slicesOverdue, []any{ids}, CausePipe, SlotError{Code: "unsent",
			Message: "the request did not get into the stream before the deadline"})
		return err
	})
	return n, err
}

const extendSlices = `
UPDATE work_slice s SET deadline = clock_timestamp() + st.slice_timeout
FROM run_step st
WHERE s.id = ANY($1) AND s.state = 'sent' AND st.run_id = s.run_id AND st.step = s.step`

const lockSliceIDs = `
SELECT count(*) FROM (SELECT 1 FROM work_slice WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE) locked`

// Extend gives sent slices a new deadline, because no service has been handed their requests yet. Leader work.
func (s *Store) Extend(ctx context.Context, lease Lease, ids []SliceID) error {
	return s.asLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSliceIDs, ids); err != nil {
			return fmt.Errorf("lock %d slices: %w", len(ids), err)
		}
		if _, err := tx.Exec(ctx, extendSlices, ids); err != nil {
			return fmt.Errorf("extend %d slices: %w", len(ids), err)
		}
		return nil
	})
}

// Undelivered ends a slice whose request JetStream gave up after too many deliveries, as a failure of the items.
func (s *Store) Undelivered(ctx context.Context, id SliceID, e SlotError) error {
	return s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := release(ctx, tx, slicesByID, []any{[]SliceID{id}}, CauseDead, e)
		return err
	})
}

// Split replaces a slice by pieces of it that stay claimed by the same session, because its request would be larger
// than the server takes. The masks are disjoint and together the slice's. It returns the pieces, or nothing when the
// slice is no longer the session's.
func (s *Store) Split(ctx context.Context, session SessionID, id SliceID, masks []bitfield.Set,
	timeout time.Duration,
) (pieces []Slice, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		pieces = nil
		held, err := lockSlices(ctx, tx, slicesByID, []SliceID{id})
		if err != nil || len(held) == 0 || held[0].state != "claimed" {
			return err
		}
		h := held[0]
		if !partition(h.remaining, masks) {
			return fmt.Errorf("%d pieces do not add up to its %d items: %w", len(masks), h.remaining.Count(), errFence)
		}
		set := newSettlement(&copyRows{})
		for _, mask := range masks {
			piece := Slice{NewSliceID(), h.Run, h.Step, h.Block, h.Generation, mask, h.Attempt, h.Failures, CauseSplit}
			set.made = append(set.made,
				madeSlice{Slice: piece, parent: h.ID, state: "claimed", session: session, timeout: timeout})
			pieces = append(pieces, piece)
		}
		h.remaining = bitfield.Set{}
		set.end(h, "split", "", &SlotError{Code: "split", Message: "the request would be larger than max_payload"})
		return set.apply(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("split slice %s: %w", id, err)
	}
	return pieces, nil
}

// partition reports whether masks are disjoint, none of them empty, and together the whole.
func partition(whole bitfield.Set, masks []bitfield.Set) bool {
	for i := range masks {
		if masks[i].Empty() || !whole.Contains(&masks[i]) {
			return false
		}
		whole = whole.AndNot(masks[i])
	}
	return whole.Empty()
}
