// Package session keeps the sessions of nodes, the leader's lease, and the mark by which a database is seen to have
// gone back in time; what nodes agree on about JetStream's streams (settings, incarnations, troubles); and what was
// answered to requests with an idempotency key.
package session

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Store is the database for nodes and their leader. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// NodeInfo says who a session belongs to.
type NodeInfo struct {
	Host    string
	PID     int
	Version string
}

const insertSession = `
INSERT INTO node_session (id, host, pid, version, feature_level, expires_at)
VALUES ($1, $2, $3, $4, 3, tranche_now() + $5)`

// StartSession opens a session that lives for ttl beyond its last heartbeat.
func (s Store) StartSession(ctx context.Context, node NodeInfo, ttl time.Duration) (workqueue.SessionID, error) {
	id := workqueue.NewSessionID()
	if _, err := s.db.Sessions.Exec(ctx, insertSession, id, node.Host, node.PID, node.Version, ttl); err != nil {
		return workqueue.SessionID{}, fmt.Errorf("start session: %w", err)
	}
	return id, nil
}

// A session that has expired stays so, even when no one has swept it yet: its node may have been asleep, and others may
// already have acted on its silence.
const beatSession = `
UPDATE node_session
SET heartbeat_at = tranche_now(), expires_at = tranche_now() + $2, stats = $3
WHERE id = $1 AND ended_at IS NULL AND expires_at > tranche_now()`

// Heartbeat prolongs a session and stores the node's counters. It returns ErrSessionLost when the session is over.
func (s Store) Heartbeat(ctx context.Context, id workqueue.SessionID, ttl time.Duration, stats any) error {
	doc, err := json.Marshal(stats)
	if err != nil {
		return fmt.Errorf("heartbeat %s: %w", id, err)
	}
	tag, err := s.db.Sessions.Exec(ctx, beatSession, id, ttl, doc)
	if err != nil {
		return fmt.Errorf("heartbeat %s: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("heartbeat %s: %w", id, workqueue.ErrSessionLost)
	}
	return nil
}
