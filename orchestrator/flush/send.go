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

// ordinalBits is how much of an operation's number stands as the ordinal of its item. The rest stands as the generation
// of the request, so that the two together, with the collector's id as the run, are the operation's indefinitely:
// services can tell by them whether they have carried it out.
const ordinalBits = 31

// codeIncomplete marks a reply of which messages were lost.
const codeIncomplete = "incomplete"

// flushAnswer is what has come of a flush. It is safe for concurrent use.
type flushAnswer struct {
	mu    sync.Mutex
	place map[int]int // of an operation, by its ordinal
	end   *collectorstore.FlushEnd
	odd   int // slots that were not asked for, or came twice
}

// Answered implements core.Taker.
func (a *flushAnswer) Answered(*wire.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end.Replied = true
}

// Take implements core.Taker.
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

// flush asks for the operations of a key and notes what came of them in end. It returns false when nothing is to be
// recorded: the node stops, or the key is someone else's by now.
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
		return true // the first does not fit any message, and has its error
	}
	if !n.NC.IsConnected() { // it would be sent when the connection is back, and no one may wait for it by then
		end.Failure = &workqueue.SlotError{Code: core.CodeUnsent, Retry: true, Message: "there is no connection to NATS"}
		return true
	}
	if has, err := w.hold.has(ctx, f.keys, w, q.Slice); !has {
		if err == nil || ctx.Err() != nil {
			return false
		}
		n.Log.Warn("whose a key is cannot be told; it is given back", zap.String("collector", w.claimed.Name),
			zap.String("key", end.Flush.Key), zap.Error(err))
		end.Ops, end.Slots = nil, nil // nothing came of it
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
		n.Log.Warn("slots that were not asked for, or came twice; they are not taken", zap.String("collector",
			w.claimed.Name), zap.String("key", end.Flush.Key), zap.Int("slots", answer.odd))
	}
	end.Failure = failureOf(timed, q, err, limit)
	end.Refused = q.Failure != nil && errors.Is(err, q.Failure)
	return true
}

// failureOf is what became of the operations for which no slot came; nil when the reply was complete.
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

// question writes the request for as many operations as fit it: what is left over is for the next flush. It returns nil
// when the first operation fits no message.
func (f *Flusher) question(w *flight, end *collectorstore.FlushEnd, answer *flushAnswer) *core.Question {
	n, endpoint := f.node, w.claimed.Spec.Endpoint
	q := core.NewQuestion(endpoint, end.Flush.ID)
	q.Places = answer.place
	generation := int(end.Ops[0].Seq >> ordinalBits)
	meta := wire.Meta{Run: w.claimed.Run, Slice: q.Slice, Root: q.Slice, Attempt: 1 + end.Ops[0].Attempts,
		Generation: 1 + generation, Mode: wire.ModeBatch, Origin: n.Name,
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
		if int(op.Seq>>ordinalBits) != generation || !b.Add(ordinal, op.ID, op.Payload) {
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

// sentFlushes are those whose requests are out, by the tokens of their calls. A request may be sent again, after the
// connection was lost; its service may then begin only now. So that no other flush of the key begins beside it, its
// time begins again, and the key is kept for as long, before it is sent: up to twice the time in all, however often the
// connection is lost, and not again within resendTimeout.
//
// What remains is that one and the same flush may be worked on twice side by side. A service that went on with it while
// the connection was lost does not keep another from beginning with what is sent again; and what is published just when
// the connection is lost lies in the client's buffer, goes out when it is back, and again then. After an outage of
// NATS that was longer than the flush may take, what lay in that buffer may even meet the next flush of its key.
type sentFlushes struct {
	keys keyStore
	log  *zap.Logger

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

func newSentFlushes(keys keyStore, log *zap.Logger) *sentFlushes {
	return &sentFlushes{keys: keys, log: log, all: map[string]*sentFlush{}}
}

// limit returns a context that ends when the time of a flush is over. stop must be called.
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
		if f == nil || now.Sub(f.tried) < core.ResendTimeout {
			continue
		}
		if left := min(f.limit, f.last.Sub(now)); left > 0 {
			f.tried, due[token] = now, renewal{f, left}
		}
	}
	return due
}

// renew gives flushes their time again and returns the tokens of those that may be sent again: the others are given
// up. While no one says whose their keys are, it returns those to ask about again: as long as they are waited for.
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
