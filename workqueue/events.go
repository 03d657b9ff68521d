package workqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// EventKind says what happened to a run.
type EventKind string

// The kinds of event.
const (
	EventStarted   EventKind = "started"
	EventCompleted EventKind = "completed" // once per generation
	EventCancelled EventKind = "cancelled"
	EventRerun     EventKind = "rerun"
	EventReset     EventKind = "reset"    // parts of a step were taken back
	EventPaused    EventKind = "paused"   // the payload says why
	EventResumed   EventKind = "resumed"  // by an operator
	EventApproved  EventKind = "approved" // the canary: all items may go
	EventSealed    EventKind = "sealed"   // an open run has all its items
	EventOverdue   EventKind = "overdue"  // an open run was not sealed in time
)

// Event is one thing that happened to a run. It is stored in the transaction that made it happen and published to
// JetStream afterwards, at least once, under a stable id.
type Event struct {
	ID         uuid.UUID
	Run        RunID
	Generation Generation
	Kind       EventKind
	Payload    json.RawMessage
	At         time.Time
}

const insertEvent = `
INSERT INTO run_event (id, run_id, generation, kind, payload) VALUES ($1, $2, $3, $4, $5)`

func addEvent(ctx context.Context, tx pgx.Tx, run RunID, gen Generation, kind EventKind, payload map[string]any) error {
	doc, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("event %s of run %s: %w", kind, run, err)
	}
	if _, err := tx.Exec(ctx, insertEvent, uuid.Must(uuid.NewV7()), run, gen, string(kind), doc); err != nil {
		return fmt.Errorf("event %s of run %s: %w", kind, run, err)
	}
	return nil
}

// unpublishedEvents goes by run_event_unpublished.
const unpublishedEvents = `
SELECT id, run_id, generation, kind, payload, at
FROM run_event WHERE published_at IS NULL AND (at, id) > ($1, $2) AND kind <> ALL ($3) ORDER BY at, id LIMIT $4`

// EventPlace is where an event stands among all. The zero place is before all of them.
type EventPlace struct {
	At time.Time
	ID uuid.UUID
}

// UnpublishedEvents returns events behind a place, but for some kinds, that no one has marked as published, oldest
// first.
func (s *Store) UnpublishedEvents(ctx context.Context, after EventPlace, but []EventKind, limit int) ([]Event, error) {
	without := make([]string, 0, len(but)) // never NULL, which nothing differs from
	for _, kind := range but {
		without = append(without, string(kind))
	}
	rows, err := s.pool.Query(ctx, unpublishedEvents, after.At, after.ID, without, limit)
	if err != nil {
		return nil, fmt.Errorf("read unpublished events: %w", err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Event])
	if err != nil {
		return nil, fmt.Errorf("read unpublished events: %w", err)
	}
	return events, nil
}

// EventsPublished marks events as published.
func (s *Store) EventsPublished(ctx context.Context, ids []uuid.UUID) error {
	const mark = `UPDATE run_event SET published_at = clock_timestamp() WHERE id = ANY($1) AND published_at IS NULL`
	if _, err := s.pool.Exec(ctx, mark, ids); err != nil {
		return fmt.Errorf("mark %d events as published: %w", len(ids), err)
	}
	return nil
}
