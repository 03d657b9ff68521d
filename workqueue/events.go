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
	EventRewound   EventKind = "rewound"  // the database went back in time: what it had confirmed of the run is lost

	// EventGap is of no run: the database went back in time, or another server took it over.
	EventGap EventKind = "database.gap"
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
INSERT INTO run_event (id, run_id, generation, kind, payload, at)
VALUES ($1, $2, $3, $4, $5, coalesce($6, clock_timestamp()))`

func addEvent(ctx context.Context, tx pgx.Tx, run RunID, gen Generation, kind EventKind, payload map[string]any) error {
	_, err := addEventAt(ctx, tx, run, gen, kind, time.Time{}, payload)
	return err
}

// addEventAt adds an event of a time that PostgreSQL has told, and returns it. The zero time is that of the insert.
func addEventAt(ctx context.Context, tx pgx.Tx, run RunID, gen Generation, kind EventKind, at time.Time,
	payload map[string]any,
) (Event, error) {
	doc, err := json.Marshal(payload)
	e := Event{ID: eventID(run, gen, kind), Run: run, Generation: gen, Kind: kind, Payload: doc, At: at}
	told := &e.At
	if at.IsZero() {
		told = nil
	}
	if err == nil {
		err = later(ctx, tx, insertEvent, e.ID, run, gen, string(kind), doc, told)
	}
	if err != nil {
		return e, fmt.Errorf("event %s of run %s: %w", kind, run, err)
	}
	return e, nil
}

// eventID returns the id of an event. That of a completion follows from its run and generation: a database that went
// back in time completes what it had completed before, and who hears of it again hears the same.
func eventID(run RunID, gen Generation, kind EventKind) uuid.UUID {
	if kind != EventCompleted {
		return uuid.Must(uuid.NewV7())
	}
	return uuid.NewSHA1(uuid.UUID(run), fmt.Appendf(nil, "%d.%s", gen, kind))
}

// unpublishedEvents goes by run_event_unpublished. A completion is left to the node that committed it for a while.
const unpublishedEvents = `
SELECT id, run_id, generation, kind, payload, at
FROM run_event WHERE published_at IS NULL AND (at, id) > ($1, $2) AND kind <> ALL ($3)
  AND (kind <> 'completed' OR at < clock_timestamp() - $5::interval) ORDER BY at, id LIMIT $4`

// ownCompletion is for how long a completion is left to the node that committed it, which publishes it at once.
const ownCompletion = time.Second

// EventPlace is where an event stands among all. The zero place is before all of them.
type EventPlace struct {
	At time.Time
	ID uuid.UUID
}

// UnpublishedEvents returns events behind a place, but for some kinds, that no one has marked as published, oldest
// first. It leaves out completions of the last second, which the nodes publish that committed them.
func (s *Store) UnpublishedEvents(ctx context.Context, after EventPlace, but []EventKind, limit int) ([]Event, error) {
	without := make([]string, 0, len(but)) // never NULL, which nothing differs from
	for _, kind := range but {
		without = append(without, string(kind))
	}
	rows, err := s.pool.Query(ctx, unpublishedEvents, after.At, after.ID, without, limit, ownCompletion)
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
