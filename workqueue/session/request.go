package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// RequestKept is how long the answer to a request is kept for its idempotency key.
const RequestKept = 24 * time.Hour

const maxSweptRequests = 1000

// KeptRequest is what is known of an earlier request with a key.
type KeptRequest struct {
	Operation   string
	Fingerprint []byte                // as given to ClaimRequest, or with its answer to AnswerRequest
	CarriedOut  *workqueue.CarriedOut // its change; nil: none, as far as is known
	Answer      *Answer               // nil: it is in progress or, if it was carried out, its answer was lost
	At          time.Time
}

// Answer is a saved answer.
type Answer struct {
	Status      int
	ContentType string
	Headers     map[string]string
	Body        []byte // nil: not saved
}

const (
	// A request with an answer is free after a day. One without an answer or a change is free once its node is dead, or
	// if its own node asks. If a node presumed dead still commits, the claim refuses.
	claimRequest = `
INSERT INTO api_request AS r (user_name, key, operation, fingerprint, claim, session_id)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (user_name, key) DO UPDATE
SET operation = excluded.operation, fingerprint = excluded.fingerprint, claim = excluded.claim,
    session_id = excluded.session_id, committed_action = NULL, status = NULL, content_type = '', headers = '{}',
    body = NULL, created_at = tranche_now()
WHERE CASE WHEN r.status IS NOT NULL OR r.committed_action IS NOT NULL
    THEN r.created_at < tranche_now() - $7::interval
    ELSE r.operation = excluded.operation AND r.fingerprint = excluded.fingerprint
        AND NOT EXISTS (SELECT FROM node_session n WHERE n.id = r.session_id AND n.id <> excluded.session_id
                        AND n.ended_at IS NULL AND n.expires_at > tranche_now()) END`

	keptRequest = `
SELECT operation, fingerprint, committed_action, status, content_type, headers, body, created_at
FROM api_request WHERE user_name = $1 AND key = $2`

	answerRequest = `
UPDATE api_request SET status = $4, content_type = $5, headers = $6, body = $7, fingerprint = $8
WHERE user_name = $1 AND key = $2 AND claim = $3`

	dropRequest = `
DELETE FROM api_request WHERE user_name = $1 AND key = $2 AND claim = $3 AND committed_action IS NULL`

	// The oldest, by api_request_created. A load may be in progress for more than a day.
	sweepRequests = `
DELETE FROM api_request WHERE (user_name, key) IN (
    SELECT user_name, key FROM api_request r
    WHERE created_at < tranche_now() - $1::interval AND (status IS NOT NULL OR committed_action IS NOT NULL
        OR NOT EXISTS (SELECT FROM node_session n WHERE n.id = r.session_id AND n.ended_at IS NULL
                       AND n.expires_at > tranche_now()))
    ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)`

	// Inputs may name a person's key. The audit log has the requester and confirmer.
	sweepActs = `
DELETE FROM admin_act WHERE state = 'pending' AND expires_at <= tranche_now() - interval '1 hour'
    OR asked_at < tranche_now() - interval '30 days'`
)

// ClaimRequest claims the right to carry out a request with a key, or returns what is known of an earlier claim.
func (s Store) ClaimRequest(ctx context.Context, key workqueue.RequestKey, operation string, fingerprint []byte,
	session workqueue.SessionID,
) (claim *workqueue.RequestClaim, known *KeptRequest, err error) {
	for range 3 { // the row may vanish between the two statements
		claim = &workqueue.RequestClaim{RequestKey: key, ID: uuid.New()}
		tag, err := s.db.Pool.Exec(ctx, claimRequest, key.User, key.Key, operation, fingerprint, claim.ID, session,
			RequestKept)
		if err != nil {
			return nil, nil, fmt.Errorf("claim request %q: %w", key.Key, err)
		}
		if tag.RowsAffected() > 0 {
			return claim, nil, nil
		}
		known, err := s.keptRequest(ctx, key)
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, known, err
		}
	}
	return nil, &KeptRequest{Operation: operation, Fingerprint: fingerprint}, nil // others are working on it
}

func (s Store) keptRequest(ctx context.Context, key workqueue.RequestKey) (*KeptRequest, error) {
	var k KeptRequest
	var a Answer
	var status *int
	err := s.db.Pool.QueryRow(ctx, keptRequest, key.User, key.Key).Scan(&k.Operation, &k.Fingerprint, &k.CarriedOut,
		&status,
		&a.ContentType, &a.Headers, &a.Body, &k.At)
	if err != nil {
		return nil, fmt.Errorf("read request %q: %w", key.Key, err)
	}
	if status != nil {
		a.Status = *status
		k.Answer = &a
	}
	return &k, nil
}

// AnswerRequest saves the answer to a request.
func (s Store) AnswerRequest(ctx context.Context, claim *workqueue.RequestClaim, answer *Answer, fingerprint []byte,
) error {
	headers := answer.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	_, err := s.db.Pool.Exec(ctx, answerRequest, claim.User, claim.Key, claim.ID, answer.Status, answer.ContentType,
		headers, answer.Body, fingerprint)
	return pg.Wrap(err, "keep the answer to request %q", claim.Key)
}

// DropRequest deletes a refused request, so that its key is free. One that has changed something stays.
func (s Store) DropRequest(ctx context.Context, claim *workqueue.RequestClaim) error {
	_, err := s.db.Pool.Exec(ctx, dropRequest, claim.User, claim.Key, claim.ID)
	return pg.Wrap(err, "forget request %q", claim.Key)
}

// SweepRequests deletes expired requests, a batch at a time, and expired acts. Leader work.
func (s Store) SweepRequests(ctx context.Context, lease workqueue.Lease) (n int64, err error) {
	err = New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sweepRequests, RequestKept, maxSweptRequests)
		n = tag.RowsAffected()
		if err == nil {
			_, err = tx.Exec(ctx, sweepActs)
		}
		return err
	})
	return n, pg.Wrap(err, "delete old requests")
}

// WithClaim makes changes under the context part of a request with a key: the first one records in its transaction
// that the request was carried out, and none commits after the claim has passed to another request.
func WithClaim(ctx context.Context, claim *workqueue.RequestClaim) context.Context {
	return context.WithValue(ctx, ledger.ClaimKey{}, claim)
}
