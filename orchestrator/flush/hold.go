package flush

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// hold is until when it is known that the keys of a flight are its own. A node may stand still between its claim and
// its requests, or PostgreSQL may take long to read the operations: meanwhile the session ends, or the time for which
// keys are kept, and somebody else flushes them. What was claimed a while ago is therefore asked for only after another
// look, which keeps the keys as if they were claimed then.
type hold struct {
	trust time.Duration // for how long after a look nobody else can have the keys

	mu     sync.Mutex
	last   time.Time // when the last look that had an answer was begun
	kept   []uuid.UUID
	all    bool      // nothing is known but the claim, which has all
	failed time.Time // when the last look ended that had none
	err    error     // of that
}

// newHold is that of a claim which was begun at a time. A session lives on for most of its time after a claim, and keys
// are kept for DefaultClaimTTL at least.
func newHold(begun time.Time, session time.Duration) *hold {
	return &hold{trust: min(session, dispatch.DefaultClaimTTL) / 2, last: begun, all: true}
}

// has reports whether a flush still has its key. The error is one of the look.
func (h *hold) has(ctx context.Context, store *database.DB, w *flight, id uuid.UUID) (bool, error) {
	came := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed.After(came) {
		return false, h.err // PostgreSQL is slow: the flushes of a claim do not ask it one after the other
	}
	if now := time.Now(); now.Sub(h.last) >= h.trust {
		timed, cancel := context.WithTimeout(ctx, h.trust)
		defer cancel()
		kept, err := collectorstore.New(store).ProlongFlushes(timed, flushIDs(w), timeouts(w))
		if err != nil {
			h.failed, h.err = time.Now(), err
			return false, err
		}
		h.last, h.kept, h.all = now, kept, false
	}
	return h.all || slices.Contains(h.kept, id), nil
}

func flushIDs(w *flight) []uuid.UUID {
	ids := make([]uuid.UUID, len(w.claimed.Flushes))
	for i := range ids {
		ids[i] = w.claimed.Flushes[i].ID
	}
	return ids
}

func timeouts(w *flight) []time.Duration {
	return slices.Repeat([]time.Duration{time.Duration(w.claimed.Spec.Timeout)}, len(w.claimed.Flushes))
}
