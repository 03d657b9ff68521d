package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

// LeaseName is the name of the only lease.
const LeaseName = "tranche"

const (
	// LeaseHolds finds the unexpired lease of a session.
	LeaseHolds = `
SELECT 1 FROM leader
WHERE name = $1 AND session_id = $2 AND epoch = $3 AND expires_at > tranche_now()`

	// HoldLease prevents a takeover of the lease until the commit, see [session.Store.AsLeader]. A transaction that wrote
	// nothing need not: its lock alone would make the commit wait for the disk, ten times a second on an idle node.
	HoldLease = `
WITH held AS MATERIALIZED (` + LeaseHolds + ` AND pg_current_xact_id_if_assigned() IS NOT NULL FOR KEY SHARE)
SELECT FROM held UNION ALL SELECT WHERE pg_current_xact_id_if_assigned() IS NULL`
)

// HoldLeaseIn prevents a takeover of the lease until the transaction ends. It comes last in one.
func HoldLeaseIn(ctx context.Context, tx pgx.Tx, lease workqueue.Lease) error {
	return CheckLease(ctx, tx, HoldLease, lease)
}

// CheckLease returns ErrNotLeader unless a statement about the lease finds it.
func CheckLease(ctx context.Context, tx pgx.Tx, statement string, lease workqueue.Lease) error {
	tag, err := tx.Exec(ctx, statement, LeaseName, lease.Session, lease.Epoch)
	if err != nil {
		return fmt.Errorf("check the leader's lease: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return workqueue.ErrNotLeader
	}
	return nil
}

// EndSession ends a node's session.
const EndSession = `
UPDATE node_session SET ended_at = tranche_now() WHERE id = $1 AND ended_at IS NULL`

// SessionLive is a condition on a session ID: it has neither ended nor expired.
const SessionLive = `
SELECT 1 FROM node_session WHERE id = $1 AND ended_at IS NULL AND expires_at > tranche_now()`
