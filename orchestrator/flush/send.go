package flush

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/internal/direct"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// ordinalBits is how much of an operation's number stands as the ordinal of its item. The rest stands as the generation
// of the request, so that the two together, with the collector's id as the run, are the operation's for ever: services
// can tell by them whether they have carried it out.
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

// Answered implements direct.Taker.
func (a *flushAnswer) Answered(*wire.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end.Replied = true
}

// Take implements direct.Taker.
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
		to.Err = kernel.SlotError(fetch.Clean(slot.Err))
	}
}

// flush asks for the operations of a key and notes what came of them in end. It returns false when nothing is to be
// recorded: the node stops, or the key is somebody else's by now.
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
	if !n.NC.IsConnected() { // it would be sent when the connection is back, and nobody may wait for it by then
		end.Failure = &workqueue.SlotError{Code: direct.CodeUnsent, Retry: true, Message: "there is no connection to NATS"}
		return true
	}
	if has, err := w.hold.has(ctx, n.Store, w, q.Slice); !has {
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
func failureOf(timed context.Context, q *direct.Question, err error, limit time.Duration) *workqueue.SlotError {
	switch {
	case err == nil && q.Final >= 0 && (q.Whole || q.Slots >= q.Final):
		return nil
	case err == nil:
		return &workqueue.SlotError{Code: codeIncomplete, Retry: true,
			Message: "the reply is announced to have more slots than came"}
	case timed.Err() != nil && kernel.IsEnd(err):
		return &workqueue.SlotError{Code: kernel.CodeDeadline, Retry: true,
			Message: kernel.TimeOverError{Limit: limit}.Error()}
	default:
		return kernel.SlotError(fetch.ErrorOf(err, true))
	}
}

// question writes the request for as many operations as fit it: what is left over is for the next flush. It returns nil
// when the first operation fits no message.
func (f *Flusher) question(w *flight, end *collectorstore.FlushEnd, answer *flushAnswer) *direct.Question {
	n, endpoint := f.node, w.claimed.Spec.Endpoint
	q := direct.NewQuestion(endpoint, end.Flush.ID)
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
		end.Slots[0] = collectorstore.FlushSlot{Came: true, Err: &workqueue.SlotError{Code: kernel.CodeItemTooLarge,
			Message: n.TooLarge(nil)}}
		return nil
	}
	end.Ops = end.Ops[:b.Len()]
	q.Put(b, meta.ReplyTo)[wire.HeaderCollector] = []string{w.claimed.Name}
	return q
}
