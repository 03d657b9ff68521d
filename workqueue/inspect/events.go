package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// unpublishedEvents goes by run_event_unpublished. A completion is left to the node that committed it for a while.
const unpublishedEvents = `
SELECT id, run_id, generation, kind, payload, at
FROM run_event WHERE published_at IS NULL AND (at, id) > ($1, $2) AND kind <> ALL ($3)
  AND (kind <> 'completed' OR at < tranche_now() - $5::interval) ORDER BY at, id LIMIT $4`

// ownCompletion is for how long a completion is left to the node that committed it, which publishes it at once.
const ownCompletion = time.Second

// EventPlace is where an event stands among all. The zero place is before all of them.
type EventPlace struct {
	At time.Time
	ID uuid.UUID
}

// UnpublishedEvents returns events behind a place, but for some kinds, that no one has marked as published, oldest
// first. It leaves out completions of the last second, which the nodes publish that committed them.
func (s Store) UnpublishedEvents(
	ctx context.Context, after EventPlace, but []workqueue.EventKind, limit int,
) ([]workqueue.Event, error) {
	without := make([]string, 0, len(but)) // never NULL, which nothing differs from
	for _, kind := range but {
		without = append(without, string(kind))
	}
	events, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[workqueue.Event],
		unpublishedEvents, after.At, after.ID, without, limit, ownCompletion)
	if err != nil {
		return nil, fmt.Errorf("read unpublished events: %w", err)
	}
	return events, nil
}

// EventsPublished marks events as published.
func (s Store) EventsPublished(ctx context.Context, ids []uuid.UUID) error {
	const mark = `UPDATE run_event SET published_at = tranche_now() WHERE id = ANY($1) AND published_at IS NULL`
	if _, err := s.db.Pool.Exec(ctx, mark, ids); err != nil {
		return fmt.Errorf("mark %d events as published: %w", len(ids), err)
	}
	return nil
}
