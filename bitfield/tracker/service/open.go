// Package service offers the tracker to anybody who has a fan-out of their own: open a batch under an owner's key, add
// n items, hand their ids out, acknowledge them in any order, and be told once that none is missing.
//
// It stands on package tracker, and adds what a service needs: idempotent opens and adds, acks over several batches,
// items that failed with a code, one event at the end, and an end for what everybody forgot.
//
//	open ──Seal──▶ sealed ──last ack──▶ completed ──after Keep──▶ deleted
//	  └─idle for OpenIdle──▶ expired ◀──idle for SealedIdle─┘ ──after Keep──▶ deleted
//
// # Guarantees
//
// A batch is completed by exactly one call, a Seal or an Ack, and only that call is told so; the event is inserted into
// the outbox run_event in its transaction, once. An item counts as failed, or as done, by the first ack of it that is
// committed; every later one changes nothing. Adding with a key that was used before adds nothing and returns the same
// groups. A batch that was not opened here, like that of a run, does not exist for this package.
//
// Every function works in the caller's transaction, which must be READ COMMITTED. After an error the transaction must
// be rolled back: some of a call may have been carried out.
//
// # Locks
//
// Those of package tracker (groups in ascending order, then the batch row, batches by ascending id), and last rows of
// tracker_service, again by ascending id. A row of tracker_failed is written by who holds its group, and so waits for
// no one. An ack writes the row of tracker_service once a second at most, and skips it when someone holds it: there is
// no hot row.
//
// # Not its job
//
// It publishes nothing, calls no webhook, reads no text of ids, and starts no goroutines.
package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// batchOwner is the owner of the service's batches in package tracker, where a run's have "run".
const batchOwner = "service"

// Hook is where a webhook goes.
type Hook struct {
	URL    string
	Secret string // the name of the secret that signs it; empty: unsigned
}

// Origin is the scheme and the host of the URL: what everybody may see. Behind them there may be a secret.
func (h Hook) Origin() string {
	u, err := url.Parse(h.URL)
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// shown is the origin, and a sign that there is more.
func (h Hook) shown() string {
	if origin := h.Origin(); origin != h.URL {
		return origin + "/…"
	}
	return h.URL
}

// OpenRequest says what to open. The zero values of ages are the defaults.
type OpenRequest struct {
	ID         uuid.UUID // the zero one: a new one of version 7
	Owner      string    // whose it is; required
	Key        string    // opening again with the same owner and key finds the same batch; empty: none
	CreatedBy  string    // who asked
	OpenIdle   time.Duration
	SealedIdle time.Duration
	Keep       time.Duration
	Webhook    Hook // without a URL: none
}

// Opened is a batch that was opened, now or before.
type Opened struct {
	ID       uuid.UUID
	Existing bool // it was opened before, by the same request
}

func (r *OpenRequest) normalise() error {
	if r.ID == (uuid.UUID{}) {
		r.ID = uuid.Must(uuid.NewV7())
	}
	if r.Webhook.URL == "" && r.Webhook.Secret != "" {
		return &RequestError{Field: "webhook.url", Problem: "is missing, though there is a secret"}
	}
	return errors.Join(
		text("owner", r.Owner, MaxText, true), text("key", r.Key, MaxText, false),
		text("webhook.url", r.Webhook.URL, MaxURL, false), text("webhook.secret", r.Webhook.Secret, MaxText, false),
		age("open_idle", &r.OpenIdle, DefaultOpenIdle), age("sealed_idle", &r.SealedIdle, DefaultSealedIdle),
		age("keep", &r.Keep, DefaultKeep))
}

// insertServiceSQL waits for another open of the same key, and finds its row. reap_at is the earliest moment at which
// either age can have passed.
const insertServiceSQL = `
INSERT INTO tracker_service (batch_id, owner, key, created_by, open_idle, sealed_idle, keep, webhook_url,
    webhook_secret, reap_at)
VALUES ($1, $2, nullif($3, ''), $4, $5, $6, $7, nullif($8, ''), nullif($9, ''),
    tranche_now() + least($5::interval, $6::interval))
ON CONFLICT (owner, key) DO NOTHING`

// dropOpenedSQL takes back a batch row of this very transaction.
const dropOpenedSQL = `DELETE FROM tracker_batch WHERE id = $1`

// findOpenedSQL reads a batch by its owner's key or, when there is no key, by id. It takes no locks.
const findOpenedSQL = `
SELECT batch_id, owner, coalesce(key, ''), open_idle, sealed_idle, keep,
       coalesce(webhook_url, ''), coalesce(webhook_secret, '')
FROM tracker_service
WHERE deleted_at IS NULL AND CASE WHEN $3 <> '' THEN owner = $2 AND key = $3 ELSE batch_id = $1 END`

// Open makes an empty batch, or finds the one that the same request made before: by owner and key, or without a key by
// id. A request that differs from the first one is a *ConflictError; an id that is taken otherwise is
// tracker.ErrExists.
func Open(ctx context.Context, tx pgx.Tx, r OpenRequest) (Opened, error) {
	asked := r.ID != (uuid.UUID{})
	if err := r.normalise(); err != nil {
		return Opened{}, err
	}
	if before, err := r.before(ctx, tx, asked); err != nil || before.Existing {
		return before, err
	}
	err := tracker.Open(ctx, tx, r.ID, batchOwner)
	if errors.Is(err, tracker.ErrExists) {
		return r.taken(ctx, tx, asked, err)
	}
	if err != nil {
		return Opened{}, err
	}
	tag, err := tx.Exec(ctx, insertServiceSQL, r.ID, r.Owner, r.Key, r.CreatedBy, r.OpenIdle, r.SealedIdle, r.Keep,
		r.Webhook.URL, r.Webhook.Secret)
	if err != nil {
		return Opened{}, wrap("open", r.ID, err)
	}
	if tag.RowsAffected() == 1 {
		return Opened{ID: r.ID}, nil
	}
	if _, err := tx.Exec(ctx, dropOpenedSQL, r.ID); err != nil {
		return Opened{}, wrap("open", r.ID, err)
	}
	return r.taken(ctx, tx, asked, tracker.ErrExists)
}

// before looks for what the same request opened earlier.
func (r *OpenRequest) before(ctx context.Context, tx pgx.Tx, asked bool) (Opened, error) {
	if r.Key == "" && !asked {
		return Opened{}, nil
	}
	was := OpenRequest{}
	err := tx.QueryRow(ctx, findOpenedSQL, r.ID, r.Owner, r.Key).Scan(&was.ID, &was.Owner, &was.Key, &was.OpenIdle,
		&was.SealedIdle, &was.Keep, &was.Webhook.URL, &was.Webhook.Secret)
	if errors.Is(err, pgx.ErrNoRows) {
		return Opened{}, nil
	}
	if err != nil {
		return Opened{}, wrap("open", r.ID, err)
	}
	return Opened{ID: was.ID, Existing: true}, r.differs(was, asked)
}

// taken is for an open that met another one at the same time.
func (r *OpenRequest) taken(ctx context.Context, tx pgx.Tx, asked bool, taken error) (Opened, error) {
	before, err := r.before(ctx, tx, asked)
	if err == nil && !before.Existing {
		err = wrap("open", r.ID, taken)
	}
	return before, err
}

func (r *OpenRequest) differs(was OpenRequest, asked bool) error {
	for _, f := range []struct{ field, was, is string }{
		{"id", was.ID.String(), cmp.Or(map[bool]string{true: r.ID.String()}[asked], was.ID.String())},
		{"owner", was.Owner, r.Owner},
		{"key", was.Key, r.Key},
		{"open_idle", was.OpenIdle.String(), r.OpenIdle.String()},
		{"sealed_idle", was.SealedIdle.String(), r.SealedIdle.String()},
		{"keep", was.Keep.String(), r.Keep.String()},
		{"webhook.url", was.Webhook.URL, r.Webhook.URL},
		{"webhook.secret", was.Webhook.Secret, r.Webhook.Secret},
	} {
		if f.was != f.is {
			if f.field == "webhook.url" {
				f.was, f.is = was.Webhook.shown(), r.Webhook.shown()
			}
			return &ConflictError{Batch: was.ID, Op: "open", Key: r.Key, Field: f.field,
				Was: fmt.Sprintf("%q", f.was), Is: fmt.Sprintf("%q", f.is)}
		}
	}
	return nil
}

// ErrConflict is wrapped by every *ConflictError.
var ErrConflict = errors.New("the key is taken by something else")

// NotFoundError is returned for a batch that does not exist, is deleted, or was not opened by the service. It wraps
// tracker.ErrNotFound.
type NotFoundError struct {
	Batch uuid.UUID
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("there is no tracker %s", e.Batch) }

// Unwrap returns tracker.ErrNotFound.
func (e *NotFoundError) Unwrap() error { return tracker.ErrNotFound }

// RequestError is returned for something that no tracker can do, before anything is read.
type RequestError struct {
	Field   string // what of the request is wrong, by its name in Go, in lower case with underscores
	Problem string // what is wrong, and what would be right
}

func (e *RequestError) Error() string { return e.Field + ": " + e.Problem }

// ConflictError is returned when a key, or an id, was used before for something else. It wraps ErrConflict.
type ConflictError struct {
	Batch uuid.UUID // the batch that has it
	Op    string    // open, add
	Key   string    // empty when it is about the id
	Field string    // what differs
	Was   string    // what it was the first time
	Is    string    // what it is now
}

func (e *ConflictError) Error() string {
	what := fmt.Sprintf("the key %q", e.Key)
	if e.Key == "" {
		what = "the id"
	}
	return fmt.Sprintf("%s was used before, for tracker %s, with %s %s, and now with %s: repeat the request as it was, "+
		"or choose another", what, e.Batch, e.Field, e.Was, e.Is)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

func wrap(op string, batch uuid.UUID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s tracker %s: %w", op, batch, err)
}

// Limits of what is taken.
const (
	MaxAdd       = 1_000_000_000  // items of one Add
	MaxItems     = 10_000_000_000 // items of a batch
	MaxAckGroups = 20_000         // groups that the masks of one Ack name: 20 MB; whole groups are not limited
	MaxText      = 200            // characters of an owner, a key, the name of a secret
	MaxCode      = 64             // characters of a code
	MaxURL       = 2000           // characters of a webhook's URL
	MaxPage      = 10_000         // rows of a page
)

// Ages that hold unless others are asked for.
const (
	DefaultOpenIdle   = 24 * time.Hour     // an open batch that no one touched expires
	DefaultSealedIdle = 7 * 24 * time.Hour // so does a sealed one
	DefaultKeep       = 7 * 24 * time.Hour // how long a completed or expired one can be asked for
)

// Bounds of the three ages.
const (
	MinAge = time.Second
	MaxAge = 366 * 24 * time.Hour
)

// text checks a name that people chose.
func text(field, value string, limit int, required bool) error {
	switch n := utf8.RuneCountInString(value); {
	case value == "" && required:
		return &RequestError{Field: field, Problem: "is missing"}
	case !utf8.ValidString(value):
		return &RequestError{Field: field, Problem: "is not valid UTF-8"}
	case n > limit:
		return &RequestError{Field: field, Problem: fmt.Sprintf("has %d characters; at most %d are taken", n, limit)}
	}
	for i, r := range value {
		if !unicode.IsPrint(r) {
			return &RequestError{Field: field, Problem: fmt.Sprintf("has the unprintable character %U at byte %d", r, i)}
		}
	}
	return nil
}

// age applies the default and checks the bounds. PostgreSQL keeps microseconds.
func age(field string, d *time.Duration, def time.Duration) error {
	if *d == 0 {
		*d = def
	}
	*d = d.Truncate(time.Microsecond)
	if *d < MinAge || *d > MaxAge {
		return &RequestError{Field: field, Problem: fmt.Sprintf("is %v; it must be from %v to %v", *d, MinAge, MaxAge)}
	}
	return nil
}

// page is a limit as the statements take it.
func page(limit int) int { return min(max(limit, 1), MaxPage) }
