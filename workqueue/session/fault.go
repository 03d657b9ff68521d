package session

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// StreamFault is a stream that takes no messages although its server answers.
type StreamFault struct {
	Stream string
	Since  time.Time
	// Detail is what the server said when it was to take a message into a stream made for that: why there is no room.
	// Empty when it took it, so that the stream itself is broken and about to be replaced.
	Detail string
}

const noteStreamFault = `
INSERT INTO stream_fault AS f (stream, detail) VALUES ($1, $2)
ON CONFLICT (stream) DO UPDATE SET detail = excluded.detail WHERE f.detail <> excluded.detail`

// NoteStreamFault notes that a stream takes no messages, and what is known of why. Leader work.
func (s Store) NoteStreamFault(ctx context.Context, lease workqueue.Lease, stream, detail string) error {
	return New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, noteStreamFault, stream, pg.Plain(detail)); err != nil {
			return fmt.Errorf("note that stream %s takes nothing: %w", stream, err)
		}
		return nil
	})
}

// ClearStreamFault notes that a stream takes messages again. Leader work.
func (s Store) ClearStreamFault(ctx context.Context, lease workqueue.Lease, stream string) error {
	return New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM stream_fault WHERE stream = $1`, stream); err != nil {
			return fmt.Errorf("note that stream %s takes messages again: %w", stream, err)
		}
		return nil
	})
}

// StreamFaults reads what is wrong with streams, the oldest first.
const StreamFaults = `SELECT stream, since, detail FROM stream_fault ORDER BY since, stream`

// StreamFaults returns the streams that take no messages, the oldest such first.
func (s Store) StreamFaults(ctx context.Context) ([]StreamFault, error) {
	faults, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[StreamFault], StreamFaults)
	if err != nil {
		return nil, fmt.Errorf("read which streams take nothing: %w", err)
	}
	return faults, nil
}

// requestsWait goes by work_slice_live.
const requestsWait = `
SELECT EXISTS (SELECT FROM work_slice s
    WHERE s.state IN ('claimed', 'sent') AND coalesce(s.sent_at, s.created_at) < tranche_now() - $1::interval)`

// RequestsWait reports whether any request is under way for longer than that, sent or not.
func (s Store) RequestsWait(ctx context.Context, longer time.Duration) (wait bool, err error) {
	if err := s.db.Pool.QueryRow(ctx, requestsWait, longer).Scan(&wait); err != nil {
		return false, fmt.Errorf("look for requests that wait: %w", err)
	}
	return wait, nil
}

// publishAgain reads all events, which is no matter: streams are not replaced every day.
const publishAgain = `
UPDATE run_event SET published_at = NULL WHERE published_at > tranche_now() - $1::interval`

// PublishAgain has the events published once more that were published lately: the stream that took them is to go. Each
// has the id that it had, by which its readers know it. Leader work.
func (s Store) PublishAgain(ctx context.Context, lease workqueue.Lease, lately time.Duration) error {
	err := New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, publishAgain, lately)
		return err
	})
	if err != nil {
		return fmt.Errorf("have events published again: %w", err)
	}
	return nil
}
