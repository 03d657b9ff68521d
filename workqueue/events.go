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

const unpublishedEvents = `
SELECT id, run_id, generation, kind, payload, at
FROM run_event WHERE published_at IS NULL ORDER BY at, id LIMIT $1`

// UnpublishedEvents returns events that no one has marked as published, oldest first.
func (s *Store) UnpublishedEvents(ctx context.Context, limit int) ([]Event, error) {
	rows, err := s.pool.Query(ctx, unpublishedEvents, limit)
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
