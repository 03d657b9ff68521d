package workqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Lease is the right to do leader work: sweeps, and later schedules and retention. The epoch grows with every change of
// hands; every leader transaction checks it.
type Lease struct {
	Session SessionID
	Epoch   int64
}

const leaseName = "tranche"

// takeLease takes the lease when it is free or expired, and prolongs it for the one who has it. The single row is its
// own lock.
const takeLease = `
INSERT INTO leader AS l (name, epoch, session_id, expires_at)
VALUES ($1, 1, $2, clock_timestamp() + $3)
ON CONFLICT (name) DO UPDATE
SET epoch = CASE WHEN l.session_id = excluded.session_id THEN l.epoch ELSE l.epoch + 1 END,
    session_id = excluded.session_id,
    expires_at = excluded.expires_at
WHERE l.session_id = excluded.session_id OR l.expires_at <= clock_timestamp()
RETURNING epoch`

// Lead takes or prolongs the lease for ttl. It returns ErrNotLeader when another session has it.
func (s *Store) Lead(ctx context.Context, session SessionID, ttl time.Duration) (Lease, error) {
	lease := Lease{Session: session}
	err := s.sessions.QueryRow(ctx, takeLease, leaseName, session, ttl).Scan(&lease.Epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return Lease{}, ErrNotLeader
	}
	if err != nil {
		return Lease{}, fmt.Errorf("take the leader's lease: %w", err)
	}
	return lease, nil
}

const dropLease = `
UPDATE leader SET expires_at = clock_timestamp() WHERE name = $1 AND session_id = $2 AND epoch = $3`

// Resign gives the lease up, so that another node need not wait for its end.
func (s *Store) Resign(ctx context.Context, lease Lease) error {
	if _, err := s.sessions.Exec(ctx, dropLease, leaseName, lease.Session, lease.Epoch); err != nil {
		return fmt.Errorf("resign the leader's lease: %w", err)
	}
	return nil
}

// holdLease locks the lease for the length of a leader transaction: FOR SHARE, so that nobody can take it over before
// the commit, and the leader's own prolonging waits for no more than that.
const holdLease = `
SELECT 1 FROM leader
WHERE name = $1 AND session_id = $2 AND epoch = $3 AND expires_at > clock_timestamp()
FOR SHARE`

// asLeader runs f in a transaction in which the lease is known to hold.
func (s *Store) asLeader(ctx context.Context, lease Lease, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, holdLease, leaseName, lease.Session, lease.Epoch)
		if err != nil {
			return fmt.Errorf("check the leader's lease: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return ErrNotLeader
		}
		return f(ctx, tx)
	})
}
