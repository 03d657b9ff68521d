package identity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// TokenID names an API token. It is random, so that its first digits identify it.
type TokenID uuid.UUID

// String returns the usual 36 characters.
func (id TokenID) String() string { return uuid.UUID(id).String() }

// MarshalText and UnmarshalText make the id a string in JSON.
func (id TokenID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *TokenID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// TokenState says whether a token or web session is valid.
type TokenState string

// The states of a token.
const (
	TokenActive  TokenState = "active"
	TokenExpired TokenState = "expired"
	TokenRevoked TokenState = "revoked"
	// TokenElsewhere is the state of a valid token that is used from outside its networks.
	TokenElsewhere TokenState = "elsewhere"
)

// TokenView is a token without its secret, which only its holder knows.
type TokenView struct {
	ID         TokenID           `json:"id"`
	Name       string            `json:"name" doc:"the actor in the audit log of what is done with it"`
	Role       string            `json:"role" enum:"none,watcher,viewer,operator,admin" doc:"in every namespace, and for all that belongs to none"`
	Grants     map[string]string `json:"grants,omitempty" doc:"further roles, by namespace"`
	State      TokenState        `json:"state" enum:"active,expired,revoked"`
	CreatedAt  time.Time         `json:"created_at"`
	CreatedBy  string            `json:"created_by"`
	ExpiresAt  *time.Time        `json:"expires_at,omitempty" doc:"absent: never"`
	Networks   []string          `json:"networks,omitempty" doc:"where it may be used from; absent: anywhere"`
	RotatedAt  *time.Time        `json:"rotated_at,omitempty" doc:"when another took its place"`
	LastUsedAt *time.Time        `json:"last_used_at,omitempty" doc:"to the minute; absent: it has not been used"`
	RevokedAt  *time.Time        `json:"revoked_at,omitempty"`
	RevokedBy  string            `json:"revoked_by,omitempty"`
}

// NewToken is a token to be created.
type NewToken struct {
	Name, Role string
	Hash       [32]byte          // of its secret
	ExpiresIn  time.Duration     // 0: never
	Networks   []string          // as CIDR, where it may be used from; none: anywhere
	Grants     map[string]string // further roles, by namespace
	Makers     []string          // see [Eyes]; none: it is made in the database
	replaces   *TokenID          // whose makers are its, too
}

// MaxTokens bounds what Tokens lists.
const MaxTokens = 1000

const tokenColumns = ` id, name, role, grants,
    CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= tranche_now() THEN 'expired'
         ELSE 'active' END,
    created_at, created_by, expires_at, networks, rotated_at, last_used_at, revoked_at, revoked_by`

// The names of people with a session of an identity provider, and of rotated tokens that are still valid, are taken.
const insertToken = `
INSERT INTO api_token (id, name, role, hash, created_by, expires_at, networks, grants, makers)
SELECT $1, $2, $3, $4, $5, tranche_now() + $6::interval, coalesce($7, '{}'::text[]), $8,
    coalesce($9, '{}'::text[]) || coalesce((SELECT makers FROM api_token WHERE id = $10), '{}')
WHERE NOT EXISTS (SELECT FROM web_session WHERE subject IS NOT NULL AND lower(user_name) = lower($2)
    AND expires_at > tranche_now())
  AND ($10 IS NOT NULL OR NOT EXISTS (SELECT FROM api_token
    WHERE lower(name) = lower($2) AND rotated_at IS NOT NULL AND revoked_at IS NULL AND expires_at > tranche_now()))
ON CONFLICT (lower(name)) WHERE revoked_at IS NULL AND rotated_at IS NULL DO NOTHING
RETURNING` + tokenColumns

func nameTaken(name string) error {
	return workqueue.Conflict("name: %q is that of another token or of a person, now or before; choose another name, or "+
		"replace the token: tranche token rotate", name)
}

// A namespace is not deleted meanwhile.
const unknownNamespace = `
WITH there AS MATERIALIZED (SELECT name FROM namespace WHERE $1::jsonb ? name ORDER BY name FOR KEY SHARE)
SELECT k FROM jsonb_object_keys($1::jsonb) k
WHERE NOT EXISTS (SELECT FROM there WHERE name = k) ORDER BY k LIMIT 1`

func (n *NewToken) insert(ctx context.Context, tx pgx.Tx, actor string) (TokenView, error) {
	var life *time.Duration
	if n.ExpiresIn > 0 {
		life = &n.ExpiresIn
	}
	var unknown string
	err := tx.QueryRow(ctx, unknownNamespace, orNone(n.Grants)).Scan(&unknown)
	if err == nil {
		return TokenView{}, &workqueue.UnknownNamespaceError{Name: unknown}
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return TokenView{}, err
	}
	out, err := pg.One(ctx, tx, pgx.RowToStructByPos[TokenView], insertToken,
		uuid.New(), n.Name, n.Role, n.Hash[:], pg.Plain(actor), life,
		n.Networks, orNone(n.Grants), n.Makers, n.replaces)
	return out, pg.NoRow(err, nameTaken(n.Name))
}

// Also of revoked tokens: the audit log says what they did.
const nameElsewhere = `SELECT EXISTS (SELECT FROM api_token WHERE lower(name) = lower($2) AND NOT` + inNamespaces + `)`

// CreateToken saves a token, with an audit entry. A name in use is a [workqueue.ConflictError], also if the context
// does not see its token.
func (s Store) CreateToken(ctx context.Context, n NewToken, actor string) (TokenView, error) {
	var out TokenView
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		taken, err := pg.One(ctx, tx, pgx.RowTo[bool], nameElsewhere, workqueue.Namespaces(ctx), n.Name)
		if err == nil && taken {
			err = nameTaken(n.Name)
		}
		if err == nil {
			out, err = n.insert(ctx, tx, actor)
		}
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "token_create", Subject: out.Name,
			After: out.audited()})
	})
	return out, pg.Wrap(err, "create token %s", n.Name)
}

func (t *TokenView) audited() map[string]any {
	doc := map[string]any{"token": t.ID, "role": t.Role, "state": t.State}
	if t.ExpiresAt != nil {
		doc["expires_at"] = t.ExpiresAt
	}
	if len(t.Grants) > 0 {
		doc["grants"] = t.Grants
	}
	if len(t.Networks) > 0 {
		doc["networks"] = t.Networks
	}
	return doc
}

const rotateToken = `
UPDATE api_token SET rotated_at = tranche_now(), expires_at = least(expires_at, tranche_now() + $2::interval)
WHERE id = $1
RETURNING` + tokenColumns

// RotateToken saves a token of the same name, roles, networks and life (at most maxLife, unless 0) as another, which
// ends after the overlap, with an audit entry. The reference is that of [Store.RevokeToken].
func (s Store) RotateToken(ctx context.Context, ref string, hash [32]byte, overlap, maxLife time.Duration,
	actor string, makers []string) (out TokenView, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		before, err := tokenFor(ctx, tx, ref)
		if err != nil {
			return err
		}
		n := NewToken{Name: before.Name, Role: before.Role, Hash: hash, ExpiresIn: maxLife, Networks: before.Networks,
			Grants: before.Grants, Makers: makers, replaces: &before.ID}
		if before.ExpiresAt != nil {
			n.ExpiresIn = before.ExpiresAt.Sub(before.CreatedAt)
		}
		if maxLife > 0 {
			n.ExpiresIn = min(n.ExpiresIn, maxLife)
		}
		after, err := pg.One(ctx, tx, pgx.RowToStructByPos[TokenView], rotateToken, before.ID, overlap)
		if err == nil {
			out, err = n.insert(ctx, tx, actor)
		}
		if err != nil {
			return fmt.Errorf("rotate token %s: %w", before.ID, err)
		}
		detail := after.audited()
		detail["successor"] = out.ID
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "token_rotate", Subject: out.Name,
			Before: before.audited(), After: detail})
	})
	return out, err
}

// Token finds the token that [Store.RotateToken] would rotate.
func (s Store) Token(ctx context.Context, ref string) (out TokenView, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = tokenFor(ctx, tx, ref)
		return err
	})
	return out, err
}

// inNamespaces is a condition: the token has rights in the namespaces $1 only; null: anywhere.
const inNamespaces = `
($1::text[] IS NULL OR role = 'none' AND NOT EXISTS (SELECT FROM jsonb_object_keys(grants) k WHERE k <> ALL ($1)))`

// Few rows: one for each user or program.
const listTokens = `SELECT` + tokenColumns + ` FROM api_token WHERE` + inNamespaces + `
ORDER BY created_at DESC, id LIMIT $2`

// Tokens lists the newest MaxTokens tokens, of those whose rights are all in the context's namespaces. Other methods
// find no others either.
func (s Store) Tokens(ctx context.Context) ([]TokenView, error) {
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[TokenView], listTokens,
		workqueue.Namespaces(ctx), MaxTokens)
	return all, pg.Wrap(err, "list tokens")
}

const anyTokens = `
SELECT EXISTS (
    SELECT FROM api_token WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > tranche_now()))`

// HasTokens reports whether any token can log in.
func (s Store) HasTokens(ctx context.Context) (found bool, err error) {
	err = s.db.Pool.QueryRow(ctx, anyTokens).Scan(&found)
	return found, pg.Wrap(err, "find tokens")
}

// $3 and $4 are null if the reference cannot start an ID. A name is not that of a rotated token that ended. FOR
// UPDATE: of two concurrent revocations, one succeeds.
const matchingTokens = `SELECT` + tokenColumns + `
FROM api_token
WHERE (name = $2 AND (rotated_at IS NULL OR expires_at > tranche_now()) OR id BETWEEN $3 AND $4) AND` + inNamespaces + `
ORDER BY revoked_at IS NULL DESC, created_at DESC, id LIMIT $5 FOR UPDATE`

const revokeToken = `
UPDATE api_token SET revoked_at = tranche_now(), revoked_by = $2 WHERE id = $1 AND revoked_at IS NULL
RETURNING` + tokenColumns

const endTokenSessions = `DELETE FROM web_session WHERE token_id = $1` // web_session_token

// RevokeToken revokes a token and ends its web sessions, with an audit entry. The reference is an ID, the start of
// one (at least MinPrefix digits), or the name of the only token with that name that is not revoked.
func (s Store) RevokeToken(ctx context.Context, ref, actor string) (TokenView, error) {
	var out TokenView
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		before, err := tokenFor(ctx, tx, ref)
		if err != nil {
			return err
		}
		if out, err = pg.One(ctx, tx, pgx.RowToStructByPos[TokenView], revokeToken, before.ID, pg.Plain(actor)); err == nil {
			_, err = tx.Exec(ctx, endTokenSessions, before.ID)
		}
		if err != nil {
			return fmt.Errorf("revoke token %s: %w", before.ID, err)
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "token_revoke", Subject: out.Name,
			Before: before.audited(), After: out.audited()})
	})
	return out, err
}

func tokenFor(ctx context.Context, tx pgx.Tx, ref string) (TokenView, error) {
	if ref = strings.TrimSpace(ref); !pg.ValidText(ref) {
		return TokenView{}, noToken(ref)
	}
	var low, high *uuid.UUID
	if lo, hi, ok := pg.PrefixRange(ref); ok {
		low, high = &lo, &hi
	}
	found, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[TokenView], matchingTokens, workqueue.Namespaces(ctx), ref,
		low, high, pg.MaxMatches)
	switch {
	case err != nil:
		return TokenView{}, fmt.Errorf("look up token %q: %w", ref, err)
	case len(found) == 0:
		return TokenView{}, noToken(ref)
	case found[0].RevokedAt != nil: // those that are not revoked come first
		return TokenView{}, workqueue.Conflict("token %s was revoked already, by %s at %s", found[0].ID,
			found[0].RevokedBy, found[0].RevokedAt.UTC().Format(time.RFC3339))
	case len(found) > 1 && found[1].RevokedAt == nil:
		return TokenView{}, workqueue.Conflict("%q fits more than one token, among them %s and %s; give the id, or more "+
			"of it", ref, found[0].ID, found[1].ID)
	}
	return found[0], nil
}

func noToken(ref string) error {
	return fmt.Errorf("no token has ID or name %q: %w", ref, workqueue.ErrNotFound)
}

// ErrNoCredential is returned if no token or web session has a secret.
var ErrNoCredential = errors.New("no token or session has this secret")
