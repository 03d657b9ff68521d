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

// WebSessionView is a browser that is logged in.
type WebSessionView struct {
	User      string    `json:"user" doc:"the actor in the audit log"`
	Role      string    `json:"role" enum:"viewer,operator,admin"`
	Token     *TokenID  `json:"token,omitempty" doc:"by which it logged in; absent: by a provider of identities"`
	CreatedAt time.Time `json:"created_at"`
	ActiveAt  time.Time `json:"active_at" doc:"when it was last used, to the minute"`
	ExpiresAt time.Time `json:"expires_at" doc:"at the latest"`

	CheckedAt *time.Time `json:"checked_at,omitempty" doc:"when the provider last said so, if it can be asked"`
}

// MaxWebSessions bounds what WebSessions lists.
const MaxWebSessions = 1000

// Those of a token that was revoked are gone; those that nobody has used for too long are listed until they expire.
const listWebSessions = `
SELECT user_name, role, token_id, created_at, active_at, expires_at, checked_at FROM web_session
WHERE expires_at > tranche_now() ORDER BY active_at DESC, hash LIMIT $1`

// WebSessions lists the MaxWebSessions sessions that were used last.
func (s Store) WebSessions(ctx context.Context) ([]WebSessionView, error) {
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[WebSessionView], listWebSessions, MaxWebSessions)
	if err != nil {
		return nil, fmt.Errorf("list web sessions: %w", err)
	}
	return all, nil
}

const revokeWebSessions = `DELETE FROM web_session WHERE user_name = $1` // as few as there are logins

// RevokeWebSessions ends all web sessions of a user, with a row in the audit log, and returns how many there were. The
// error wraps ErrNotFound when there was none.
func (s Store) RevokeWebSessions(ctx context.Context, user, actor string) (ended int64, err error) {
	if !pg.ValidText(user) {
		return 0, fmt.Errorf("nobody is logged in as %q: %w", user, workqueue.ErrNotFound)
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, revokeWebSessions, user)
		if err != nil {
			return err
		}
		if ended = tag.RowsAffected(); ended == 0 {
			return fmt.Errorf("nobody is logged in as %q: %w", user, workqueue.ErrNotFound)
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "session_revoke", Subject: user,
			Before: map[string]any{"sessions": ended}, After: map[string]any{"sessions": 0}})
	})
	if err != nil {
		return 0, fmt.Errorf("revoke the sessions of %s: %w", user, err)
	}
	return ended, nil
}
