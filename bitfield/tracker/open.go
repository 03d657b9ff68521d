package tracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// trackerOwner is the owner of trackers' batches; that of runs' batches is "run".
const trackerOwner = "service"

// Hook is a webhook's target.
type Hook struct {
	URL    string
	Secret string // name of the signing secret; empty: unsigned
}

// Origin returns the URL's scheme and host, which are safe to show. The rest may contain a secret.
func (h Hook) Origin() string {
	u, err := url.Parse(h.URL)
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// shown returns the origin, marked if the URL has more.
func (h Hook) shown() string {
	if origin := h.Origin(); origin != h.URL {
		return origin + "/…"
	}
	return h.URL
}

// OpenRequest configures a tracker. Zero ages mean defaults.
type OpenRequest struct {
	ID         uuid.UUID // zero: a new one of version 7
	Namespace  string    // that owns it; empty: default
	Owner      string    // required
	Key        string    // makes opening idempotent per namespace and owner; empty: none
	CreatedBy  string    // the caller
	OpenIdle   time.Duration
	SealedIdle time.Duration
	Keep       time.Duration
	Webhook    Hook // without a URL: none
}

// Opened is the result of OpenTracker.
type Opened struct {
	ID       uuid.UUID
	Existing bool // opened before by the same request
}

func (r *OpenRequest) normalize() error {
	if r.ID == (uuid.UUID{}) {
		r.ID = uuid.Must(uuid.NewV7())
	}
	if r.Webhook.URL == "" && r.Webhook.Secret != "" {
		return &RequestError{Field: "webhook.url", Problem: "is missing, though there is a secret"}
	}
	r.Namespace = cmp.Or(r.Namespace, "default")
	if r.Owner == "" {
		return &RequestError{Field: "owner", Problem: "is missing"}
	}
	return errors.Join(
		CheckText("owner", r.Owner, MaxText), CheckText("key", r.Key, MaxText),
		CheckText("webhook.url", r.Webhook.URL, MaxURL), CheckText("webhook.secret", r.Webhook.Secret, MaxText),
		age("open_idle", &r.OpenIdle, DefaultOpenIdle), age("sealed_idle", &r.SealedIdle, DefaultSealedIdle),
		age("keep", &r.Keep, DefaultKeep))
}

// insertServiceSQL waits for a concurrent open of the same key, and then finds its row. reap_at is the earliest time
// at which either age can expire.
const insertServiceSQL = `
INSERT INTO tracker_service (batch_id, owner, key, created_by, open_idle, sealed_idle, keep, webhook_url,
    webhook_secret, reap_at, namespace)
VALUES ($1, $2, nullif($3, ''), $4, $5, $6, $7, nullif($8, ''), nullif($9, ''),
    tranche_now() + least($5::interval, $6::interval), $10)
ON CONFLICT (namespace, owner, key) DO NOTHING`

// dropBatchSQL removes a batch row created in this transaction, or that of a purged tracker.
const dropBatchSQL = `DELETE FROM tracker_batch WHERE id = $1`

// findOpenedSQL finds a tracker by owner and key or, without a key, by ID. It takes no locks.
const findOpenedSQL = `
SELECT batch_id, owner, coalesce(key, ''), open_idle, sealed_idle, keep,
       coalesce(webhook_url, ''), coalesce(webhook_secret, '')
FROM tracker_service
WHERE deleted_at IS NULL AND namespace = $4
    AND CASE WHEN $3 <> '' THEN owner = $2 AND key = $3 ELSE batch_id = $1 END`

// OpenTracker creates an empty tracker, or returns the one created by the same request: by owner and key, or by ID
// without a key. A different request is a *ConflictError; an ID taken otherwise is ErrExists.
func OpenTracker(ctx context.Context, tx pgx.Tx, r OpenRequest) (Opened, error) {
	asked := r.ID != (uuid.UUID{})
	if err := r.normalize(); err != nil {
		return Opened{}, err
	}
	if before, err := r.before(ctx, tx, asked); err != nil || before.Existing {
		return before, err
	}
	err := r.insert(ctx, tx)
	if !errors.Is(err, ErrExists) {
		return Opened{ID: r.ID}, err
	}
	before, bad := r.before(ctx, tx, asked) // a concurrent open came first
	if bad != nil || before.Existing {
		return before, bad
	}
	return Opened{}, err
}

// insert returns ErrExists if the ID or key is taken.
func (r *OpenRequest) insert(ctx context.Context, tx pgx.Tx) error {
	if err := Open(ctx, tx, r.ID, trackerOwner); err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, insertServiceSQL, r.ID, r.Owner, r.Key, r.CreatedBy, r.OpenIdle, r.SealedIdle, r.Keep,
		r.Webhook.URL, r.Webhook.Secret, r.Namespace)
	if err == nil && tag.RowsAffected() == 0 {
		if _, err = tx.Exec(ctx, dropBatchSQL, r.ID); err == nil {
			err = ErrExists
		}
	}
	return wrap("open", r.ID, err)
}

func (r *OpenRequest) before(ctx context.Context, tx pgx.Tx, asked bool) (Opened, error) {
	if r.Key == "" && !asked {
		return Opened{}, nil
	}
	was := OpenRequest{}
	err := tx.QueryRow(ctx, findOpenedSQL, r.ID, r.Owner, r.Key, r.Namespace).Scan(&was.ID, &was.Owner, &was.Key,
		&was.OpenIdle, &was.SealedIdle, &was.Keep, &was.Webhook.URL, &was.Webhook.Secret)
	if errors.Is(err, pgx.ErrNoRows) {
		return Opened{}, nil
	}
	if err != nil {
		return Opened{}, wrap("open", r.ID, err)
	}
	return Opened{ID: was.ID, Existing: true}, r.differs(was, asked)
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
			return &ConflictError{Batch: was.ID, Key: r.Key, Field: f.field,
				Was: fmt.Sprintf("%q", f.was), Is: fmt.Sprintf("%q", f.is)}
		}
	}
	return nil
}
