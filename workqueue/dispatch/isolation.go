package dispatch

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

// A slice of a step whose work nodes do themselves, and which may kill its node, is tried alone. That it is begun
// stands in handed_at, as for a request that is in a service's hands: the slice that follows it when its node is gone
// so tells one that killed it from one that waited its turn.
const (
	beginAlone = `
UPDATE work_slice SET handed_at = tranche_now()
WHERE id = $1 AND session_id = $2 AND state = 'claimed'`

	triedAlone = `
SELECT p.handed_at IS NOT NULL FROM work_slice s JOIN work_slice p ON p.id = s.parent WHERE s.id = $1`
)

// BeginAlone notes that a claimed slice is begun, with nothing else at work beside it. It returns false when the slice
// is no longer the session's.
func (s Store) BeginAlone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID) (bool, error) {
	tag, err := s.db.Pool.Exec(ctx, beginAlone, id, session)
	if err != nil {
		return false, fmt.Errorf("begin slice %s alone: %w", id, err)
	}
	return tag.RowsAffected() == 1, nil
}

// TriedAlone reports whether the slice that this one was made from was begun alone, as [Store.BeginAlone] notes.
func (s Store) TriedAlone(ctx context.Context, id workqueue.SliceID) (tried bool, err error) {
	err = s.db.Pool.QueryRow(ctx, triedAlone, id).Scan(&tried)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("look what came before slice %s: %w", id, err)
	}
	return tried, nil
}
