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

// NewWebSession is a login from a browser.
type NewWebSession struct {
	Hash [32]byte // of its cookie
	Life time.Duration

	Token *TokenID // by which it was begun; nil: see User and Role
	User  string
	Role  string

	Grants  map[string]string // further roles, by namespace
	Subject string            // the user's name at the identity provider
	Renewal []byte            // sealed data for asking the provider again; nil: it cannot be asked
}

// An invalid token begins none. FOR KEY SHARE keeps the token from being deleted meanwhile.
const beginTokenSession = `
WITH t AS (
    SELECT id, name, role, grants, expires_at, networks FROM api_token
    WHERE id = $2 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > tranche_now()) FOR KEY SHARE)
INSERT INTO web_session (hash, token_id, user_name, role, grants, expires_at)
SELECT $1, id, name, role, grants, least(expires_at, tranche_now() + $3::interval) FROM t
RETURNING user_name, role, grants, expires_at, (SELECT networks FROM t)`

// A person with the name of a token begins none.
const beginWebSession = `
INSERT INTO web_session (hash, user_name, role, expires_at, subject, renewal, checked_at, grants)
SELECT $1, $2, $3, tranche_now() + $4::interval, $5, $6, CASE WHEN $6::bytea IS NOT NULL THEN tranche_now() END, $7
WHERE NOT EXISTS (
    SELECT FROM api_token WHERE lower(name) = lower($2) AND revoked_at IS NULL
        AND (rotated_at IS NULL OR expires_at > tranche_now()))
RETURNING user_name, role, grants, expires_at, '{}'::text[]`

// web_session_expires. A few at a time, so that logins do not wait for it.
const clearWebSessions = `
DELETE FROM web_session WHERE hash IN (
    SELECT hash FROM web_session WHERE expires_at < tranche_now() ORDER BY expires_at LIMIT 100
    FOR UPDATE SKIP LOCKED)`

// BeginWebSession saves a web session and an audit entry. For an invalid token, or a person with the name of one, it
// returns ErrNoCredential.
func (s Store) BeginWebSession(ctx context.Context, n NewWebSession) (Credential, error) {
	out := Credential{Hash: n.Hash[:], Token: n.Token, State: TokenActive}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, clearWebSessions); err != nil {
			return err
		}
		statement, args := beginWebSession, []any{n.Hash[:], pg.Plain(n.User), n.Role, n.Life, pg.Plain(n.Subject), n.Renewal,
			orNone(n.Grants)}
		if n.Token != nil {
			statement, args = beginTokenSession, []any{n.Hash[:], *n.Token, n.Life}
		}
		err := tx.QueryRow(ctx, statement, args...).Scan(&out.User, &out.Role, &out.Grants, &out.ExpiresAt, &out.Networks)
		if err := pg.NoRow(err, ErrNoCredential); err != nil {
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
	if len(c.Grants) > 0 {
		doc["grants"] = c.Grants
	}
	if c.Token != nil {
		doc["token"] = c.Token
	}
	return doc
}

const endWebSession = `DELETE FROM web_session WHERE hash = $1 RETURNING user_name, role, token_id, expires_at`

// EndWebSession ends a web session, with an audit entry. It returns ErrNoCredential without one.
func (s Store) EndWebSession(ctx context.Context, hash [32]byte) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var c Credential
		err := tx.QueryRow(ctx, endWebSession, hash[:]).Scan(&c.User, &c.Role, &c.Token, &c.ExpiresAt)
		if err := pg.NoRow(err, ErrNoCredential); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.User, Name: "logout", Before: c.audited()})
	})
	return pg.Wrap(err, "end a web session")
}

// ProviderTime is how long a web session lasts after its identity provider last confirmed it.
const ProviderTime = 4*time.Minute + 30*time.Second

// DueSession is a web session that its identity provider must confirm again.
type DueSession struct {
	Hash                []byte
	User, Role, Subject string
	Renewal             []byte // sealed
	Grants              map[string]string
}

// The longest waiting first; there are as many rows as logged-in browsers. Expired and idle ones are left out.
const sessionsToRenew = `
SELECT hash, user_name, role, subject, renewal, grants FROM web_session
WHERE renewal IS NOT NULL AND checked_at < tranche_now() - $1::interval AND expires_at > tranche_now()
    AND active_at > tranche_now() - $2::interval
ORDER BY checked_at LIMIT $3`

// DueSessions returns up to limit web sessions that are not idle and were not confirmed for that long.
func (s Store) DueSessions(ctx context.Context, since, idle time.Duration, limit int) ([]DueSession, error) {
	due, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[DueSession], sessionsToRenew, since, idle, limit)
	return due, pg.Wrap(err, "find sessions to renew")
}

// The renewal is the fence: of two concurrent checks, the one that used the stored renewal saves its answer.
const renewSession = `
UPDATE web_session SET renewal = $3, checked_at = tranche_now() WHERE hash = $1 AND renewal = $2`

// RenewSession records the provider's confirmation, and the next renewal.
func (s Store) RenewSession(ctx context.Context, due *DueSession, renewal []byte) error {
	_, err := s.db.Pool.Exec(ctx, renewSession, due.Hash, due.Renewal, renewal)
	return pg.Wrap(err, "renew a session of %s", due.User)
}

const endDueSession = `DELETE FROM web_session WHERE hash = $1 AND renewal = $2`

// EndDueSession ends a web session that the provider no longer confirms, with an audit entry.
func (s Store) EndDueSession(ctx context.Context, due *DueSession, why string) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, endDueSession, due.Hash, due.Renewal)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "session_end", Subject: due.User,
			Detail: map[string]any{"why": why}, Before: map[string]any{"role": due.Role}})
	})
	return pg.Wrap(err, "end a session of %s", due.User)
}

// WebSessionView is a logged-in browser.
type WebSessionView struct {
	User string `json:"user" doc:"the actor in the audit log"`
	Role string `json:"role" enum:"none,watcher,viewer,operator,admin"`

	Grants map[string]string `json:"grants,omitempty" doc:"further roles, by namespace"`

	Token     *TokenID  `json:"token,omitempty" doc:"by which it logged in; absent: by an identity provider"`
	CreatedAt time.Time `json:"created_at"`
	ActiveAt  time.Time `json:"active_at" doc:"when it was last used, to the minute"`
	ExpiresAt time.Time `json:"expires_at" doc:"at the latest"`

	CheckedAt *time.Time `json:"checked_at,omitempty" doc:"when the provider last said so, if it can be asked"`
}

// MaxWebSessions bounds what WebSessions lists.
const MaxWebSessions = 1000

// Sessions of revoked tokens are deleted; idle ones are listed until they expire.
const listWebSessions = `
SELECT user_name, role, grants, token_id, created_at, active_at, expires_at, checked_at FROM web_session
WHERE expires_at > tranche_now() ORDER BY active_at DESC, hash LIMIT $1`

// WebSessions lists the MaxWebSessions most recently used sessions.
func (s Store) WebSessions(ctx context.Context) ([]WebSessionView, error) {
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[WebSessionView], listWebSessions, MaxWebSessions)
	return all, pg.Wrap(err, "list web sessions")
}

const revokeWebSessions = `DELETE FROM web_session WHERE user_name = $1` // as few as there are logins

// RevokeWebSessions ends all web sessions of a user, with an audit entry, and returns their number.
func (s Store) RevokeWebSessions(ctx context.Context, user, actor string) (ended int64, err error) {
	if !pg.ValidText(user) {
		return 0, fmt.Errorf("no one is logged in as %q: %w", user, workqueue.ErrNotFound)
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, revokeWebSessions, user)
		if err != nil {
			return err
		}
		if ended = tag.RowsAffected(); ended == 0 {
			return fmt.Errorf("no one is logged in as %q: %w", user, workqueue.ErrNotFound)
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "session_revoke", Subject: user,
			Before: map[string]any{"sessions": ended}, After: map[string]any{"sessions": 0}})
	})
	return ended, pg.Wrap(err, "revoke the sessions of %s", user)
}
