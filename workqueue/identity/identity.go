// Package identity stores API tokens, web sessions and failed logins. Secrets are stored only as hashes.
package identity

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store reads and writes credentials. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Credential is what is known of a secret by its hash: a token's, or that of a web session's cookie.
type Credential struct {
	Hash      []byte
	User      string
	Role      string            // everywhere
	Grants    map[string]string // further roles, by namespace
	Token     *TokenID          // nil: a session begun without a token
	ExpiresAt *time.Time
	State     TokenState
	Unnoted   bool     // its use has not been recorded for a minute
	Networks  []string // where it may be used from; none: anywhere
}

// useNote is the precision of the last use, so that not every use is a write.
const useNote = time.Minute

// The unique index of hash.
const tokenCredential = `
SELECT hash, name, role, grants, id, expires_at,
    CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= tranche_now() THEN 'expired'
         ELSE 'active' END,
    last_used_at IS NULL OR last_used_at < tranche_now() - $2::interval, networks
FROM api_token WHERE hash = $1`

// TokenCredential finds a token by the hash of its secret. It returns ErrNoCredential without one.
func (s Store) TokenCredential(ctx context.Context, hash [32]byte) (Credential, error) {
	return scanCredential(s.db.Pool.QueryRow(ctx, tokenCredential, hash[:], useNote))
}

// vouchedFor is when the identity provider last confirmed a session: at its start, if it cannot be asked again or an
// earlier version began it. NULL for a token's session.
const vouchedFor = `CASE WHEN s.token_id IS NULL THEN coalesce(s.checked_at, s.created_at) END`

// A session is as valid as the token that began it, or its identity provider's confirmation. By primary keys.
const sessionCredential = `
SELECT s.hash, s.user_name, s.role, s.grants, s.token_id, least(s.expires_at, t.expires_at),
    CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked'
         WHEN least(s.expires_at, t.expires_at, s.active_at + $3::interval, ` + vouchedFor + ` + $4::interval)
             <= tranche_now() THEN 'expired'
         ELSE 'active' END,
    s.active_at < tranche_now() - $2::interval, t.networks
FROM web_session s LEFT JOIN api_token t ON t.id = s.token_id
WHERE s.hash = $1`

// SessionCredential finds a web session by the hash of its cookie, unless idle for longer, or returns ErrNoCredential.
func (s Store) SessionCredential(ctx context.Context, hash [32]byte, idle time.Duration) (Credential, error) {
	return scanCredential(s.db.Pool.QueryRow(ctx, sessionCredential, hash[:], useNote, idle, ProviderTime))
}

func scanCredential(row pgx.Row) (c Credential, err error) {
	err = row.Scan(&c.Hash, &c.User, &c.Role, &c.Grants, &c.Token, &c.ExpiresAt, &c.State, &c.Unnoted, &c.Networks)
	return c, pg.NoRow(pg.Wrap(err, "look a credential up"), ErrNoCredential)
}

const standingCredentials = `
SELECT hash FROM api_token
WHERE hash = ANY($1) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > tranche_now())
UNION ALL
SELECT s.hash FROM web_session s LEFT JOIN api_token t ON t.id = s.token_id
WHERE s.hash = ANY($1) AND t.revoked_at IS NULL
    AND least(s.expires_at, t.expires_at, s.active_at + $2::interval, ` + vouchedFor + ` + $3::interval)
        > tranche_now()`

// StandingCredentials returns the hashes still valid. It uses the session connections: it must answer while all the
// ordinary ones are taken.
func (s Store) StandingCredentials(ctx context.Context, hashes [][]byte, idle time.Duration) ([][]byte, error) {
	standing, err := pg.Collect(ctx, s.db.Sessions, pgx.RowTo[[]byte], standingCredentials, hashes, idle, ProviderTime)
	return standing, pg.Wrap(err, "check credentials again")
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

// NoteUse records the use of tokens and sessions, to the minute.
func (s Store) NoteUse(ctx context.Context, hashes [][]byte) error {
	batch := &pgx.Batch{}
	for _, statement := range []string{noteTokens, noteSessions, noteSessionTokens} {
		batch.Queue(statement, hashes, useNote)
	}
	err := s.db.Pool.SendBatch(ctx, batch).Close()
	return pg.Wrap(err, "note the use of credentials")
}

// Counted is what happened several times, for one audit entry.
type Counted struct {
	CountedKind

	Why   string // of the last time
	Count int64

	First, Last time.Time
}

// CountedKind is what is counted together. Empty fields mean none, or several.
type CountedKind struct {
	Action  string // login_failed, request_refused or read
	Actor   string
	Address string // or network
	Subject string
	By      string // the way or the operation
}

// Anonymous is the audit log's actor without valid credentials.
const Anonymous = "anonymous"

// NoteCounted writes an audit entry for each.
func (s Store) NoteCounted(ctx context.Context, all []Counted) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for i := range all {
			c := &all[i]
			detail := map[string]any{"count": c.Count, "first": c.First, "last": c.Last}
			for name, value := range map[string]string{"by": c.By, "why": pg.Plain(c.Why)} {
				if value != "" {
					detail[name] = value
				}
			}
			err := ledger.AuditChange(workqueue.WithOrigin(ctx, workqueue.Origin{Address: c.Address}), tx, ledger.Action{
				Actor: cmp.Or(c.Actor, Anonymous), Name: c.Action, Subject: cmp.Or(c.Subject, c.Address),
				Detail: detail})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return pg.Wrap(err, "write %d counts to the audit log", len(all))
}
