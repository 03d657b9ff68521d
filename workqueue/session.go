package workqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// NodeInfo says who a session belongs to.
type NodeInfo struct {
	Host    string
	PID     int
	Version string
}

const insertSession = `
INSERT INTO node_session (id, host, pid, version, speaks, expires_at)
VALUES ($1, $2, $3, $4, 3, clock_timestamp() + $5)`

// StartSession opens a session that lives for ttl beyond its last heartbeat.
func (s *Store) StartSession(ctx context.Context, node NodeInfo, ttl time.Duration) (SessionID, error) {
	id := NewSessionID()
	if _, err := s.sessions.Exec(ctx, insertSession, id, node.Host, node.PID, node.Version, ttl); err != nil {
		return SessionID{}, fmt.Errorf("start session: %w", err)
	}
	return id, nil
}

// A session that has expired stays so, even when nobody has swept it yet: its node may have been asleep, and others may
// already have acted on its silence.
const beatSession = `
UPDATE node_session
SET heartbeat_at = clock_timestamp(), expires_at = clock_timestamp() + $2, stats = $3
WHERE id = $1 AND ended_at IS NULL AND expires_at > clock_timestamp()`

// Heartbeat prolongs a session and stores the node's counters. It returns ErrSessionLost when the session is over.
func (s *Store) Heartbeat(ctx context.Context, id SessionID, ttl time.Duration, stats any) error {
	doc, err := json.Marshal(stats)
	if err != nil {
		return fmt.Errorf("heartbeat %s: %w", id, err)
	}
	tag, err := s.sessions.Exec(ctx, beatSession, id, ttl, doc)
	if err != nil {
		return fmt.Errorf("heartbeat %s: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("heartbeat %s: %w", id, ErrSessionLost)
	}
	return nil
}

const endSession = `
UPDATE node_session SET ended_at = clock_timestamp() WHERE id = $1 AND ended_at IS NULL`

// EndSession closes a session in good order and hands back, in the same transaction, what it had claimed and not sent.
// It returns the number of slices handed back.
func (s *Store) EndSession(ctx context.Context, id SessionID) (int, error) {
	var n int
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, endSession, id); err != nil {
			return err
		}
		var err error
		n, err = s.release(ctx, tx, slicesOfSession, []any{id}, CauseHandBack, SlotError{Code: "handback",
			Message: "the node that had claimed the slice stopped"})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("end session %s: %w", id, err)
	}
	return n, nil
}

// sessionLive is a condition on a session id: it has neither ended nor expired.
const sessionLive = `
SELECT 1 FROM node_session WHERE id = $1 AND ended_at IS NULL AND expires_at > clock_timestamp()`
