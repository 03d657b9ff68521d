// Package session stores nodes' sessions, the leader's lease, and the mark that reveals a database which lost recent
// commits. It also stores the settings, incarnations and faults of JetStream's streams, and the answers to requests
// with idempotency keys. Sessions and leases expire by the database's clock.
package session

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Store reads and writes sessions and the lease. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// NodeInfo identifies a session's node.
type NodeInfo struct {
	Host    string
	PID     int
	Version string
}

const insertSession = `
INSERT INTO node_session (id, host, pid, version, feature_level, expires_at, keyed)
VALUES ($1, $2, $3, $4, 3, tranche_now() + $5, $6)`

// StartSession opens a session that expires ttl after its last heartbeat. Without the key of a run it returns an error.
func (s Store) StartSession(ctx context.Context, node NodeInfo, ttl time.Duration) (workqueue.SessionID, error) {
	id := workqueue.NewSessionID()
	err := s.db.CheckKeys(ctx)
	if err == nil {
		_, err = s.db.Sessions.Exec(ctx, insertSession, id, node.Host, node.PID, node.Version, ttl, s.db.Keyed())
	}
	if err != nil {
		return workqueue.SessionID{}, fmt.Errorf("start session: %w", err)
	}
	return id, nil
}

// An expired session stays expired even if it was not swept: others may have acted on its silence.
const beatSession = `
UPDATE node_session
SET heartbeat_at = tranche_now(), expires_at = tranche_now() + $2, stats = $3
WHERE id = $1 AND ended_at IS NULL AND expires_at > tranche_now()`

// Heartbeat prolongs a session and stores the node's counters. It returns ErrSessionLost if the session has ended.
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
