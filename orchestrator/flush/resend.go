package flush

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/internal/direct"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
)

// sentFlushes are those whose requests are out, by the tokens of their calls. A request may be sent again, after the
// connection was lost; its service may then begin only now. So that no other flush of the key begins beside it, its
// time begins again, and the key is kept for as long, before it is sent: up to twice the time in all, however often the
// connection is lost, and not again within resendPatience.
//
// What remains is that one and the same flush may be worked on twice side by side. A service that went on with it while
// the connection was lost does not keep another from beginning with what is sent again; and what is published just when
// the connection is lost lies in the client's buffer, goes out when it is back, and once more then. After an outage of
// NATS that was longer than the flush may take, what lay in that buffer may even meet the next flush of its key.
type sentFlushes struct {
	store *database.DB
	log   *zap.Logger

	mu  sync.Mutex
	all map[string]*sentFlush
}

// sentFlush is one of them.
type sentFlush struct {
	id    uuid.UUID
	limit time.Duration
	last  time.Time   // its time is over by then, however often it begins again
	tried time.Time   // when it was last to be sent again
	end   *time.Timer // ends the wait
}

func newSentFlushes(k *kernel.Kernel) *sentFlushes {
	return &sentFlushes{store: k.Store, log: k.Log, all: map[string]*sentFlush{}}
}

// limit returns a context that ends when the time of a flush is over. stop must be called.
func (s *sentFlushes) limit(ctx context.Context, token string, id uuid.UUID, limit time.Duration) (
	timed context.Context, stop func(),
) {
	timed, cancel := context.WithCancelCause(ctx)
	sent := &sentFlush{id: id, limit: limit, last: time.Now().Add(2 * limit),
		end: time.AfterFunc(limit, func() { cancel(kernel.TimeOverError{Limit: limit}) })}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[token] = sent
	return timed, func() {
		sent.end.Stop()
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, token)
	}
}

// renewal is a flush that is to be sent again, and for how long it may take then.
type renewal struct {
	flush *sentFlush
	limit time.Duration
}

// due are the flushes that are waited for and have not been tried just now. The connection may be lost again before it
// was back for long: what was sent then is not to be sent twice for it.
func (s *sentFlushes) due(tokens []string) map[string]renewal {
	due, now := map[string]renewal{}, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, token := range tokens {
		f := s.all[token]
		if f == nil || now.Sub(f.tried) < direct.ResendPatience {
			continue
		}
		if left := min(f.limit, f.last.Sub(now)); left > 0 {
			f.tried, due[token] = now, renewal{f, left}
		}
	}
	return due
}

// renew gives flushes their time again and returns the tokens of those that may be sent once more: the others are given
// up. While nobody says whose their keys are, it returns those to ask about again: as long as they are waited for.
func (s *sentFlushes) renew(tokens []string) (again, later []string) {
	due := s.due(tokens)
	if len(due) == 0 {
		return nil, nil
	}
	ids, limits := make([]uuid.UUID, 0, len(due)), make([]time.Duration, 0, len(due))
	for _, r := range due {
		ids, limits = append(ids, r.flush.id), append(limits, r.limit)
	}
	ctx, cancel := context.WithTimeout(context.Background(), direct.ResendPatience)
	defer cancel()
	kept, err := collectorstore.New(s.store).ProlongFlushes(ctx, ids, limits)
	if err != nil {
		s.log.Warn("keep the keys of flushes for longer; they are sent again later", zap.Error(err))
		return nil, slices.Collect(maps.Keys(due))
	}
	for token, r := range due {
		if slices.Contains(kept, r.flush.id) && r.flush.end.Stop() {
			r.flush.end.Reset(r.limit)
			again = append(again, token)
		}
	}
	return again, nil
}
