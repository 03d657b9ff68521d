package trackers

import "github.com/google/uuid"

// Span is what a range means.
type Span struct{ First, Last, Lo, Hi int }

// ParseRange is parseRange for a call about one batch.
func ParseRange(text string) (Span, error) {
	s, err := parseRange(text, &uuid.UUID{})
	return Span{s.first, s.last, s.lo, s.hi}, err
}

// WebhooksPerHost is webhooksPerHost.
const WebhooksPerHost = webhooksPerHost
