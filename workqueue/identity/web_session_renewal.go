package identity

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// ProviderTime is how long a web session lasts that a provider of identities vouches for, after it did so last.
const ProviderTime = 4*time.Minute + 30*time.Second

// DueSession is a web session that a provider of identities is to be asked about again.
type DueSession struct {
	Hash                []byte
	User, Role, Subject string
	Renewal             []byte // sealed
}

// The one that waits longest first; there are as many rows as browsers that are logged in. What has expired, or is
// idle, is asked about no more.
const sessionsToRenew = `
SELECT hash, user_name, role, subject, renewal FROM web_session
WHERE renewal IS NOT NULL AND checked_at < tranche_now() - $1::interval AND expires_at > tranche_now()
    AND active_at > tranche_now() - $2::interval
ORDER BY checked_at LIMIT $3`

// DueSessions returns up to so many web sessions that were not asked about for so long, and are not idle.
func (s Store) DueSessions(ctx context.Context, since, idle time.Duration, limit int) ([]DueSession, error) {
	due, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[DueSession], sessionsToRenew, since, idle, limit)
	if err != nil {
		return nil, fmt.Errorf("look for sessions to renew: %w", err)
	}
	return due, nil
}

// The renewal is the fence: of two who asked, the one has its answer kept who asked by what is there.
const renewSession = `
UPDATE web_session SET renewal = $3, checked_at = tranche_now() WHERE hash = $1 AND renewal = $2`

// RenewSession notes that the provider stands by a web session, and what it is to be asked by next.
func (s Store) RenewSession(ctx context.Context, due *DueSession, renewal []byte) error {
	if _, err := s.db.Pool.Exec(ctx, renewSession, due.Hash, due.Renewal, renewal); err != nil {
		return fmt.Errorf("renew a session of %s: %w", due.User, err)
	}
	return nil
}

const endDueSession = `DELETE FROM web_session WHERE hash = $1 AND renewal = $2`

// EndDueSession ends a web session that the provider does not stand by any more, with a row in the audit log.
func (s Store) EndDueSession(ctx context.Context, due *DueSession, why string) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, endDueSession, due.Hash, due.Renewal)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "session_end", Subject: due.User,
			Detail: map[string]any{"why": why}, Before: map[string]any{"role": due.Role}})
	})
	if err != nil {
		return fmt.Errorf("end a session of %s: %w", due.User, err)
	}
	return nil
}
