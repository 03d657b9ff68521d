// Package session stores nodes' sessions, the leader's lease, and the mark that reveals a database which lost recent
// commits. It also stores the settings, incarnations and faults of JetStream's streams, and the answers to requests
// with idempotency keys. Sessions and leases expire by the database's clock.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
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
INSERT INTO node_session (id, host, pid, version, feature_level, expires_at, keys)
VALUES ($1, $2, $3, $4, 3, tranche_now() + $5, $6)`

// StartSession opens a session that expires ttl after its last heartbeat. Without the key of a run it returns an error.
func (s Store) StartSession(ctx context.Context, node NodeInfo, ttl time.Duration) (workqueue.SessionID, error) {
	id := workqueue.NewSessionID()
	err := s.db.CheckKeys(ctx)
	if err == nil {
		_, err = s.db.Sessions.Exec(ctx, insertSession, id, node.Host, node.PID, node.Version, ttl, s.db.Fingerprints())
	}
	return id, pg.Wrap(err, "start session")
}

// An expired session stays expired even if it was not swept: others may have acted on its silence.
const beatSession = `
UPDATE node_session
SET heartbeat_at = tranche_now(), expires_at = tranche_now() + $2, stats = $3
WHERE id = $1 AND ended_at IS NULL AND expires_at > tranche_now()
RETURNING NOT EXISTS (SELECT FROM batchrun WHERE state IN ('loading', 'running'))
    AND NOT EXISTS (SELECT FROM collector)`

// Heartbeat prolongs a session and stores the node's counters. It reports whether the installation rests: no run is in
// progress, and there is no collector. It returns ErrSessionLost if the session ended.
func (s Store) Heartbeat(ctx context.Context, id workqueue.SessionID, ttl time.Duration, stats any,
) (rests bool, err error) {
	doc, err := json.Marshal(stats)
	if err == nil {
		err = s.db.Sessions.QueryRow(ctx, beatSession, id, ttl, doc).Scan(&rests)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrSessionLost
	}
	if err != nil {
		return false, fmt.Errorf("heartbeat %s: %w", id, err)
	}
	return rests, nil
}
