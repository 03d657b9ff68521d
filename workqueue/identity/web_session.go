package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// NewWebSession is a login from a browser.
type NewWebSession struct {
	Hash [32]byte // of its cookie
	Life time.Duration

	Token *TokenID // by which it was begun; nil: User and Role say who
	User  string
	Role  string

	Subject string // as the provider of identities calls them who vouches for them
	Renewal []byte // what it is asked by whether it still does, sealed; nil: it cannot be asked
}

// A token that is not of use begins none. FOR KEY SHARE: it may not vanish meanwhile.
const beginTokenSession = `
WITH t AS (
    SELECT id, name, role, expires_at FROM api_token
    WHERE id = $2 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > tranche_now()) FOR KEY SHARE)
INSERT INTO web_session (hash, token_id, user_name, role, expires_at)
SELECT $1, id, name, role, least(expires_at, tranche_now() + $3::interval) FROM t
RETURNING user_name, role, expires_at`

const beginWebSession = `
INSERT INTO web_session (hash, user_name, role, expires_at, subject, renewal, checked_at)
VALUES ($1, $2, $3, tranche_now() + $4::interval, $5, $6,
    CASE WHEN $6::bytea IS NOT NULL THEN tranche_now() END)
RETURNING user_name, role, expires_at`

// web_session_expires. A few at a time: who logs in should not wait for it.
const clearWebSessions = `
DELETE FROM web_session WHERE hash IN (
    SELECT hash FROM web_session WHERE expires_at < tranche_now() ORDER BY expires_at LIMIT 100
    FOR UPDATE SKIP LOCKED)`

// BeginWebSession keeps a web session, with a row in the audit log, and clears away some that have expired. It returns
// ErrNoCredential when the token is of no use any more.
func (s Store) BeginWebSession(ctx context.Context, n NewWebSession) (Credential, error) {
	out := Credential{Hash: n.Hash[:], Token: n.Token, State: TokenActive}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, clearWebSessions); err != nil {
			return err
		}
		statement, args := beginWebSession, []any{n.Hash[:], pg.Plain(n.User), n.Role, n.Life, pg.Plain(n.Subject), n.Renewal}
		if n.Token != nil {
			statement, args = beginTokenSession, []any{n.Hash[:], *n.Token, n.Life}
		}
		err := tx.QueryRow(ctx, statement, args...).Scan(&out.User, &out.Role, &out.ExpiresAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNoCredential
		}
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: out.User, Name: "login", After: out.audited()})
	})
	if err != nil {
		return Credential{}, fmt.Errorf("begin a web session: %w", err)
	}
	return out, nil
}

func (c *Credential) audited() map[string]any {
	doc := map[string]any{"role": c.Role, "expires_at": c.ExpiresAt}
	if c.Token != nil {
		doc["token"] = c.Token
	}
	return doc
}

const endWebSession = `DELETE FROM web_session WHERE hash = $1 RETURNING user_name, role, token_id, expires_at`

// EndWebSession ends a web session, with a row in the audit log. It returns ErrNoCredential when there is none.
func (s Store) EndWebSession(ctx context.Context, hash [32]byte) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var c Credential
		err := tx.QueryRow(ctx, endWebSession, hash[:]).Scan(&c.User, &c.Role, &c.Token, &c.ExpiresAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNoCredential
		}
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.User, Name: "logout", Before: c.audited()})
	})
	if err != nil {
		return fmt.Errorf("end a web session: %w", err)
	}
	return nil
}
