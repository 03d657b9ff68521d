package trackers

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// Span is what a range means.
type Span struct{ First, Last, Lo, Hi int }

// ParseRange is parseRange for a call about one batch.
func ParseRange(text string) (Span, error) {
	s, err := parseRange(text, &uuid.UUID{})
	return Span{s.first, s.last, s.lo, s.hi}, err
}

// WebhooksPerHost is webhooksPerHost.
const WebhooksPerHost = webhooksPerHost

// CountCommits counts the transactions of acknowledgements.
func (s *Service) CountCommits(n *atomic.Int64) {
	commit := s.acks.commit
	s.acks.commit = func(ctx context.Context, acks []tracker.TrackerAck) ([]tracker.Acked, error) {
		n.Add(1)
		return commit(ctx, acks)
	}
}
