package workqueue

import (
	"errors"

	"github.com/google/uuid"
)

// RequestKey names a request of a user's.
type RequestKey struct{ User, Key string }

// RequestClaim is the right to carry out a request that named a key. What carries it out without the right, because it
// has passed to another, is rolled back: see [request.WithClaim].
type RequestClaim struct {
	RequestKey
	ID uuid.UUID
}

// CarriedOut is the first thing that a request has changed, as the audit log has it.
type CarriedOut struct {
	Action  string `json:"action"`
	Run     *RunID `json:"run,omitempty"`
	Subject string `json:"subject,omitempty"`
}

// ErrClaimLost is returned for a change by a request whose key another one has taken over: its node had been thought
// dead. Nothing was changed.
var ErrClaimLost = errors.New("another request with the same idempotency key has taken its place")
