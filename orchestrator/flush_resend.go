package orchestrator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
)

// sentFlushes are those whose requests are out, by the tokens of their calls. A request may be sent again, after the
// connection was lost; its service may then begin only now. So that no other flush of the key begins beside it, its
// time begins again, and the key is kept for as long, before it is sent.
type sentFlushes struct {
	store *workqueue.Store
	log   *zap.Logger

	mu  sync.Mutex
	all map[string]*sentFlush
}

// sentFlush is one of them.
type sentFlush struct {
	id    uuid.UUID
	limit time.Duration
	end   *time.Timer // ends the wait
}

func newSentFlushes(n *Node) *sentFlushes {
	return &sentFlushes{store: n.store, log: n.log, all: map[string]*sentFlush{}}
}

// limit returns a context that ends when the time of a flush is over. stop must be called.
func (s *sentFlushes) limit(ctx context.Context, token string, id uuid.UUID, limit time.Duration) (
	timed context.Context, stop func(),
) {
	timed, cancel := context.WithCancelCause(ctx)
	sent := &sentFlush{id: id, limit: limit, end: time.AfterFunc(limit, func() { cancel(timeOverError{limit}) })}
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

// renew gives flushes their time again and returns the tokens of those that may be sent once more: the others are given
// up, or it is not known that their keys are still theirs.
func (s *sentFlushes) renew(tokens []string) (again []string) {
	var ids []uuid.UUID
	var limits []time.Duration
	sent := map[string]*sentFlush{}
	s.mu.Lock()
	for _, token := range tokens {
		if f := s.all[token]; f != nil {
			sent[token], ids, limits = f, append(ids, f.id), append(limits, f.limit)
		}
	}
	s.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), resendPatience)
	defer cancel()
	kept, err := s.store.ProlongFlushes(ctx, ids, limits)
	if err != nil {
		s.log.Warn("keep the keys of flushes for longer; they are not sent again", zap.Error(err))
		return nil
	}
	for token, f := range sent {
		if slices.Contains(kept, f.id) && f.end.Stop() {
			f.end.Reset(f.limit)
			again = append(again, token)
		}
	}
	return again
}
