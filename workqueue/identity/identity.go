// Package identity keeps tokens, the sessions of web users, and failed logins.
package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store is the database for who asks who someone is. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Credential is what is known of a secret by its hash: that of a token, or of a web session's cookie.
type Credential struct {
	Hash      []byte
	User      string
	Role      string
	Token     *TokenID // nil: a session that was begun without a token
	ExpiresAt *time.Time
	State     TokenState
	Unnoted   bool // its use has not been noted for a minute
}

// useNote is how exactly the last use of a credential is known: each use being a write would be one too many.
const useNote = time.Minute

// The unique index of hash.
const tokenCredential = `
SELECT hash, name, role, id, expires_at,
    CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= tranche_now() THEN 'expired'
         ELSE 'active' END,
    last_used_at IS NULL OR last_used_at < tranche_now() - $2::interval
FROM api_token WHERE hash = $1`

// TokenCredential looks a token up by the hash of its secret. It returns ErrNoCredential when there is none.
func (s Store) TokenCredential(ctx context.Context, hash [32]byte) (Credential, error) {
	return scanCredential(s.db.Pool.QueryRow(ctx, tokenCredential, hash[:], useNote))
}

// vouchedFor is when a provider of identities last stood by a session of its: at its beginning, when it cannot be asked
// again or a node of an earlier version began it. NULL is one of a token.
const vouchedFor = `CASE WHEN s.token_id IS NULL THEN coalesce(s.checked_at, s.created_at) END`

// A session is as good as the token that began it, or the provider of identities that vouches for it. The primary keys.
const sessionCredential = `
SELECT s.hash, s.user_name, s.role, s.token_id, least(s.expires_at, t.expires_at),
    CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked'
         WHEN least(s.expires_at, t.expires_at, s.active_at + $3::interval, ` + vouchedFor + ` + $4::interval)
             <= tranche_now() THEN 'expired'
         ELSE 'active' END,
    s.active_at < tranche_now() - $2::interval
FROM web_session s LEFT JOIN api_token t ON t.id = s.token_id
WHERE s.hash = $1`

// SessionCredential looks a web session up by the hash of its cookie. One that has been idle for so long has expired.
// It returns ErrNoCredential when there is none.
func (s Store) SessionCredential(ctx context.Context, hash [32]byte, idle time.Duration) (Credential, error) {
	return scanCredential(s.db.Pool.QueryRow(ctx, sessionCredential, hash[:], useNote, idle, ProviderTime))
}

func scanCredential(row pgx.Row) (c Credential, err error) {
	err = row.Scan(&c.Hash, &c.User, &c.Role, &c.Token, &c.ExpiresAt, &c.State, &c.Unnoted)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, ErrNoCredential
	}
	if err != nil {
		return c, fmt.Errorf("look a credential up: %w", err)
	}
	return c, nil
}

const standingCredentials = `
SELECT hash FROM api_token
WHERE hash = ANY($1) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > tranche_now())
UNION ALL
SELECT s.hash FROM web_session s LEFT JOIN api_token t ON t.id = s.token_id
WHERE s.hash = ANY($1) AND t.revoked_at IS NULL
    AND least(s.expires_at, t.expires_at, s.active_at + $2::interval, ` + vouchedFor + ` + $3::interval)
        > tranche_now()`

// StandingCredentials returns those of the hashes whose token or session is still of use. It has connections of its
// own: it has to answer while all others are taken.
func (s Store) StandingCredentials(ctx context.Context, hashes [][]byte, idle time.Duration) ([][]byte, error) {
	standing, err := pg.Collect(ctx, s.db.Sessions, pgx.RowTo[[]byte], standingCredentials, hashes, idle, ProviderTime)
	if err != nil {
		return nil, fmt.Errorf("check credentials again: %w", err)
	}
	return standing, nil
}

const (
	noteTokens = `
UPDATE api_token SET last_used_at = tranche_now()
WHERE hash = ANY($1) AND (last_used_at IS NULL OR last_used_at < tranche_now() - $2::interval)`
	noteSessions = `
UPDATE web_session SET active_at = tranche_now()
WHERE hash = ANY($1) AND active_at < tranche_now() - $2::interval`
	noteSessionTokens = `
UPDATE api_token t SET last_used_at = tranche_now()
FROM web_session s
WHERE s.hash = ANY($1) AND t.id = s.token_id
    AND (last_used_at IS NULL OR last_used_at < tranche_now() - $2::interval)`
)

// NoteUse notes that tokens and sessions are being used, to the minute.
func (s Store) NoteUse(ctx context.Context, hashes [][]byte) error {
	batch := &pgx.Batch{}
	for _, statement := range []string{noteTokens, noteSessions, noteSessionTokens} {
		batch.Queue(statement, hashes, useNote)
	}
	if err := s.db.Pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("note the use of credentials: %w", err)
	}
	return nil
}

// FailedLogin is logins that failed, summed up.
type FailedLogin struct {
	Address string // or network, from which they came; empty: several
	Way     string // token, cookie or provider; empty: several
	Why     string // of the last
	Count   int64

	First, Last time.Time
}

// Anonymous is what the audit log calls those who do not say who they are, or who are not believed.
const Anonymous = "anonymous"

// NoteFailedLogins adds a row to the audit log for each.
func (s Store) NoteFailedLogins(ctx context.Context, all []FailedLogin) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for i := range all {
			f := &all[i]
			detail := map[string]any{"count": f.Count, "first": f.First, "last": f.Last}
			for name, value := range map[string]string{"by": f.Way, "why": pg.Plain(f.Why)} {
				if value != "" {
					detail[name] = value
				}
			}
			err := ledger.AuditChange(ctx, tx, ledger.Action{Actor: Anonymous, Name: "login_failed", Subject: f.Address,
				Detail: detail})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("note failed logins: %w", err)
	}
	return nil
}
