package tracker

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// rearmSQL locks the group rows and then, when all of them are held, the batch row; batch is that row as it is under
// the lock. A cancelled batch and a mask that fits no group leave everything as it was. As in ackSQL, new values come
// from the locked rows only.
const rearmSQL = lockGroupsSQL + `, batch AS MATERIALIZED (
    SELECT b.id, b.state, b.groups, b.open_groups, b.generation,
           b.state <> 'cancelled' AND NOT EXISTS (SELECT FROM bad) AS ready
    FROM tracker_batch b
    WHERE b.id = $1[1] AND (SELECT count(*) FROM locked) >= 0
    FOR NO KEY UPDATE
), moved AS (
    UPDATE tracker_group g
    SET pending = l.pending | l.mask
    FROM locked l, batch
    WHERE g.batch_id = batch.id AND g.grp = ANY ($2::integer[]) AND g.grp = l.grp
      AND batch.ready AND (l.mask & ~l.pending) <> B'0'::bit(8192)
    RETURNING l.pending = B'0'::bit(8192) AS reopened
), armed AS (
    UPDATE tracker_batch b
    SET groups       = l.groups,
        open_groups  = l.open_groups + m.reopened,
        generation   = l.generation + 1,
        state        = CASE l.state WHEN 'open' THEN 'open' ELSE 'sealed' END,
        completed_at = NULL,
        active_at    = tranche_now()
    FROM batch l, (SELECT count(*)::integer AS reopened FROM moved WHERE reopened) m
    WHERE b.id = $1[1] AND l.ready
    RETURNING b.generation
)
SELECT batch.state, batch.groups, armed.generation, bad.grp, bad.above, bad.size
FROM batch LEFT JOIN armed ON true LEFT JOIN bad ON true`

// Rearm makes items pending again and starts the next generation, which it returns: a completed batch is sealed again
// and will complete, and report it, once more. A sealed batch stays sealed, an open one open. Items that are pending
// already are left alone.
//
// A cancelled batch is a *StateError, a mask that fits no group a *GroupError, an unknown batch ErrNotFound. Masks
// without any member are ErrNothing: the batch would wait for no one.
func Rearm(ctx context.Context, tx pgx.Tx, id uuid.UUID, items []Ack) (generation int, err error) {
	const op = "rearm"
	m, err := mergeMasks(id, items)
	if err != nil {
		return 0, err
	}
	if m.empty() {
		return 0, wrap(op, id, ErrNothing)
	}
	var (
		state State
		next  *int
		bad   misfit
	)
	err = tx.QueryRow(ctx, rearmSQL, m.args()...).Scan(&state, &bad.groups, &next, &bad.group, &bad.above, &bad.size)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	switch {
	case err != nil:
		return 0, wrap(op, id, err)
	case state == StateCancelled:
		return 0, &StateError{Batch: id, State: state, Op: op, Want: "open, sealed or completed"}
	case next == nil:
		return 0, wrap(op, id, bad.err(id))
	}
	return *next, nil
}

func (m *masks) empty() bool {
	for i := range m.sets {
		if !m.sets[i].Empty() {
			return false
		}
	}
	return true
}
