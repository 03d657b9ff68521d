package flush

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// ordinalBits is the part of an operation's number used as its item's ordinal.
const ordinalBits = 31

// generationOf is the generation of an operation's item: the rest of its number, and how often the service refused it.
// Requeued after that, it is new work; otherwise the service may have executed it. With its ID, ordinal and the
// collector's id as the run, it makes the idempotency key.
func generationOf(op *collectorstore.FlushOp) int { return 1 + int(op.Seq>>ordinalBits) + op.Refusals }

// codeIncomplete marks a reply with lost messages.
const codeIncomplete = "incomplete"

// flushAnswer takes the reply of a flush. It implements core.Taker, and is safe for concurrent use.
type flushAnswer struct {
	mu    sync.Mutex
	place map[int]int // index of an operation, by its ordinal
	end   *collectorstore.FlushEnd
	odd   int // slots for unrequested items, or duplicates
}

func (a *flushAnswer) Answered(*wire.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end.Replied = true
}

func (a *flushAnswer) Take(slot fetch.Slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	place, asked := a.place[slot.Ordinal]
	if !asked || a.end.Slots[place].Came {
		a.odd++
		return
	}
	to := &a.end.Slots[place]
	to.Came = true
	if slot.Err != nil {
		to.Err = core.SlotError(fetch.Clean(slot.Err))
	}
}

// flush sends a key's operations and notes the outcome in end. It returns false if there is nothing to record: the
// node stops, or another node owns the key.
func (f *Flusher) flush(ctx context.Context, w *flight, end *collectorstore.FlushEnd) bool {
	n := f.node
	if len(end.Ops) == 0 {
		return ctx.Err() == nil
	}
	if w.session != n.Session() || f.calls.Open() != nil {
		return false
	}
	answer := &flushAnswer{place: map[int]int{}, end: end}
	q := f.question(w, end, answer)
	if q == nil {
		return true // the first operation fits no message, and has its error
	}
	if !n.NC.IsConnected() { // it would be sent after a reconnect, when its claim may have expired
		end.Failure = &workqueue.SlotError{Code: core.CodeUnsent, Retry: true, Message: "there is no connection to NATS"}
		return true
	}
	if has, err := w.hold.has(ctx, f.keys, w, q.Slice); !has {
		if err == nil || ctx.Err() != nil {
			return false
		}
		n.Log.Warn("the owner of a key is unknown; it is given back", zap.String("collector", w.claimed.Name),
			zap.Stringer("flush", end.Flush.ID), zap.Error(err))
		end.Ops, end.Slots = nil, nil // it has no result
		return true
	}
	limit := time.Duration(w.claimed.Spec.Timeout)
	timed, stop := f.sent.limit(ctx, q.Token, q.Slice, limit)
	defer stop()
	n.Stats.Flushes.Add(1)
	err := f.calls.Ask(timed, q, answer)
	if ctx.Err() != nil {
		return false
	}
	answer.mu.Lock()
	defer answer.mu.Unlock()
	if answer.odd > 0 {
		n.Stats.OddSlots.Add(int64(answer.odd))
		n.Log.Warn("slots that were not requested, or came twice; they are dropped", zap.String("collector",
			w.claimed.Name), zap.Stringer("flush", end.Flush.ID), zap.Int("slots", answer.odd))
	}
	end.Failure = failureOf(timed, q, err, limit)
	end.Refused = q.Failure != nil && errors.Is(err, q.Failure)
	return true
}

// failureOf returns the failure of the operations without a slot; nil if the reply was complete.
func failureOf(timed context.Context, q *core.Question, err error, limit time.Duration) *workqueue.SlotError {
	switch {
	case err == nil && q.Final >= 0 && (q.Whole || q.Slots >= q.Final):
		return nil
	case err == nil:
		return &workqueue.SlotError{Code: codeIncomplete, Retry: true,
			Message: "the reply is announced to have more slots than came"}
	case timed.Err() != nil && core.IsEnd(err):
		return &workqueue.SlotError{Code: core.CodeDeadline, Retry: true,
			Message: core.DeadlineError{Limit: limit}.Error()}
	default:
		return core.SlotError(fetch.ErrorOf(err, true))
	}
}

// question builds a request with as many operations as fit. It returns nil if the first fits no message.
func (f *Flusher) question(w *flight, end *collectorstore.FlushEnd, answer *flushAnswer) *core.Question {
	n, endpoint := f.node, w.claimed.Spec.Endpoint
	q := core.NewQuestion(endpoint, end.Flush.ID)
	q.Places = answer.place
	generation := generationOf(&end.Ops[0])
	meta := wire.Meta{Run: w.claimed.Run, Slice: q.Slice, Root: q.Slice, Attempt: 1 + end.Ops[0].Attempts,
		Generation: generation, Mode: wire.ModeBatch, Origin: n.Name,
		ReplyTo: f.calls.Returns(q)}
	b := wire.NewRequestBuilder(endpoint, meta, int(n.NC.MaxPayload()))
	if len(w.claimed.Spec.Params) > 0 {
		params, err := json.Marshal(w.claimed.Spec.Params)
		if err == nil {
			b.SetParams(params)
		}
	}
	for i := range end.Ops {
		op := &end.Ops[i]
		ordinal := int(op.Seq & (1<<ordinalBits - 1))
		if generationOf(op) != generation || !b.Add(ordinal, op.ID, op.Payload) {
			break
		}
		answer.place[ordinal] = i
		q.Asked.Add(i)
	}
	end.Slots = make([]collectorstore.FlushSlot, max(1, b.Len()))
	if b.Len() == 0 {
		end.Ops = end.Ops[:1]
		end.Slots[0] = collectorstore.FlushSlot{Came: true, Err: &workqueue.SlotError{Code: core.CodeItemTooLarge,
			Message: n.TooLarge(nil)}}
		return nil
	}
	end.Ops = end.Ops[:b.Len()]
	q.Put(b, meta.ReplyTo)[wire.HeaderCollector] = []string{w.claimed.Name}
	return q
}

// sentFlushes are the flushes in flight, by the token of their call. After a lost connection a request may be resent,
// and its service may begin only then. So that no other flush of the key begins meanwhile, before a resend its
// timeout starts again and the key is kept for as long: up to twice the timeout in all, and at most once per
// core.ResendTimeout.
//
// Still, a flush may be processed twice concurrently, by a service that continued during the outage, or since the
// client also buffered the request when the connection was lost. After an outage longer than the flush may take, the
// buffered request may even overlap with the key's next flush.
type sentFlushes struct {
	keys keyStore
	log  *zap.Logger

	mu  sync.Mutex
	all map[string]*sentFlush
}

type sentFlush struct {
	id    uuid.UUID
	limit time.Duration
	last  time.Time   // the flush ends by then, regardless of resends
	tried time.Time   // when it was last resent
	end   *time.Timer // ends the wait
}

func newSentFlushes(keys keyStore, log *zap.Logger) *sentFlushes {
	return &sentFlushes{keys: keys, log: log, all: map[string]*sentFlush{}}
}

// limit returns a context that ends at the timeout of a flush. stop must be called.
func (s *sentFlushes) limit(ctx context.Context, token string, id uuid.UUID, limit time.Duration) (
	timed context.Context, stop func(),
) {
	timed, cancel := context.WithCancelCause(ctx)
	sent := &sentFlush{id: id, limit: limit, last: time.Now().Add(2 * limit),
		end: time.AfterFunc(limit, func() { cancel(core.DeadlineError{Limit: limit}) })}
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

type renewal struct {
	flush *sentFlush
	limit time.Duration
}

// due returns the flushes still awaited and not resent recently: two outages in a row must not resend one twice.
func (s *sentFlushes) due(tokens []string) map[string]renewal {
	due, now := map[string]renewal{}, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, token := range tokens {
		f := s.all[token]
		if f == nil || now.Sub(f.tried) < core.ResendTimeout {
			continue
		}
		if left := min(f.limit, f.last.Sub(now)); left > 0 {
			f.tried, due[token] = now, renewal{f, left}
		}
	}
	return due
}

// renew restarts timeouts and returns the tokens of the flushes to resend. later are those to ask about again,
// because PostgreSQL did not answer; the rest is abandoned.
func (s *sentFlushes) renew(tokens []string) (again, later []string) {
	due := s.due(tokens)
	if len(due) == 0 {
		return nil, nil
	}
	ids, limits := make([]uuid.UUID, 0, len(due)), make([]time.Duration, 0, len(due))
	for _, r := range due {
		ids, limits = append(ids, r.flush.id), append(limits, r.limit)
	}
	ctx, cancel := context.WithTimeout(context.Background(), core.ResendTimeout)
	defer cancel()
	kept, err := s.keys.ProlongFlushes(ctx, ids, limits)
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
