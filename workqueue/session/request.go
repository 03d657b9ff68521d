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
)

// RequestKept is how long what a request was answered is kept for its idempotency key.
const RequestKept = 24 * time.Hour

// maxSweptRequests is how many old requests are deleted at once.
const maxSweptRequests = 1000

// KeptRequest is what is known of an earlier request with a key.
type KeptRequest struct {
	Operation   string
	Fingerprint []byte                // as it was given to ClaimRequest, or with its answer to AnswerRequest
	CarriedOut  *workqueue.CarriedOut // what it has changed; nil: nothing, as far as is known
	Answer      *Answer               // nil: it is in progress, or, when it was carried out, its answer was lost
	At          time.Time
}

// Answer is an answer as it is kept.
type Answer struct {
	Status      int
	ContentType string
	Headers     map[string]string
	Body        []byte // nil: it was not kept
}

const (
	// What has an answer is free after a day. What has none, and has changed nothing, is free once the node is dead that
	// worked on it, or when it is the one that asks: it knows that it does not. What a node that is only thought dead
	// might still commit, the claim refuses.
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
)

// ClaimRequest takes the right to carry out a request of a key, or says what is known of the one that has had it.
// fingerprint is that of what is known of the request so far.
func (s Store) ClaimRequest(ctx context.Context, key workqueue.RequestKey, operation string, fingerprint []byte,
	session workqueue.SessionID,
) (claim *workqueue.RequestClaim, known *KeptRequest, err error) {
	for range 3 { // the row may go between the two statements
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
	return nil, &KeptRequest{Operation: operation, Fingerprint: fingerprint}, nil // others are at it
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

// AnswerRequest keeps what a request was answered.
func (s Store) AnswerRequest(ctx context.Context, claim *workqueue.RequestClaim, answer *Answer, fingerprint []byte,
) error {
	headers := answer.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	_, err := s.db.Pool.Exec(ctx, answerRequest, claim.User, claim.Key, claim.ID, answer.Status, answer.ContentType,
		headers, answer.Body, fingerprint)
	if err != nil {
		return fmt.Errorf("keep the answer to request %q: %w", claim.Key, err)
	}
	return nil
}

// DropRequest forgets a request that was refused, so that its key is free. One that has changed something stays.
func (s Store) DropRequest(ctx context.Context, claim *workqueue.RequestClaim) error {
	if _, err := s.db.Pool.Exec(ctx, dropRequest, claim.User, claim.Key, claim.ID); err != nil {
		return fmt.Errorf("forget request %q: %w", claim.Key, err)
	}
	return nil
}

// SweepRequests deletes requests that have been kept for long enough, some at a time. Leader work.
func (s Store) SweepRequests(ctx context.Context, lease workqueue.Lease) (n int64, err error) {
	err = New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sweepRequests, RequestKept, maxSweptRequests)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete old requests: %w", err)
	}
	return n, nil
}

// WithClaim makes what is changed under the context part of a request that named a key: the first change notes in its
// own transaction that the request was carried out, and none is committed after the claim has passed to another.
func WithClaim(ctx context.Context, claim *workqueue.RequestClaim) context.Context {
	return context.WithValue(ctx, ledger.ClaimKey{}, claim)
}
