package trackers

import (
	"time"

	"github.com/google/uuid"
)

// Span is what a range means.
type Span struct{ First, Last, Lo, Hi int }

// ParseRange is parseRange for a call about one batch.
func ParseRange(text string) (Span, error) {
	s, err := parseRange(text, &uuid.UUID{})
	return Span{s.first, s.last, s.lo, s.hi}, err
}

// Sign is sign with a secret as it is written.
func Sign(secret, id string, at time.Time, body []byte) (timestamp, signature string, err error) {
	key, err := signingKey(secret)
	if err != nil {
		return "", "", err
	}
	timestamp, signature = sign(key, id, at, body)
	return timestamp, signature, nil
}

// WebhooksPerHost is webhooksPerHost.
const WebhooksPerHost = webhooksPerHost
