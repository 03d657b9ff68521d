package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// suspend stores the chunk in the stream and sends its requests. The returned failure applies to the items that
// cannot be suspended. If NATS takes no part of it, the job returns its message for redelivery.
//
// The message that led here is acknowledged only after that. A crash at any point repeats the stage, and all that it
// sends has the same IDs.
func (w *Work) suspend(questions []question) *wire.SlotError {
	body, failure := w.State(questions)
	if failure != nil {
		return failure
	}
	a := &w.Job.Answers
	w.leave = func() *wire.SlotError {
		err := w.send(a.Ctx, body, questions)
		if err == nil {
			return nil
		}
		a.Mu.Lock()
		defer a.Mu.Unlock()
		if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.ErrorCode == serve.StreamFull {
			// A later stage keeps its state until the next one's is stored: if all waited for space, none would be freed.
			a.Unfinished = false
			return wire.NewSlotError(wire.CodeFlowFull,
				"stream "+wire.StreamFlow+" has no room for the chunk; suspend fewer at a time, keep "+
					"smaller states, or give the stream more bytes", true)
		}
		a.Broken(err)
		return nil
	}
	return nil
}

// State encodes the state and closes the stage to further answers, which would be lost.
func (w *Work) State(questions []question) (body []byte, failure *wire.SlotError) {
	a := &w.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	s, failure := w.snapshot(questions)
	if failure != nil {
		return nil, failure
	}
	body, err := s.encode()
	switch {
	case err != nil:
		return nil, wire.NewSlotError(wire.CodeBadState, fmt.Sprintf("the chunk's state cannot be written: %v", err), false)
	case len(body) > w.Flow.Most:
		return nil, w.tooMuch(fmt.Sprintf("the states of the chunk's %d items take %d bytes", len(s.Items), len(body)))
	}
	a.Closed, a.Unfinished = true, true
	a.Flush() // sends while the state is stored
	return body, nil
}

// tooMuch is not retryable, so that a node splits the chunk immediately until its parts fit.
func (w *Work) tooMuch(what string) *wire.SlotError {
	return wire.NewSlotError(wire.CodeStateTooLarge,
		fmt.Sprintf("%s, and a flow keeps at most %d bytes between stages; keep less, "+
			"use smaller chunks, or store the data elsewhere and keep where it is", what, w.Flow.Most), false)
}

// snapshot collects what the next stage needs and fails items that are too large alone. Answers.Mu must be held.
func (w *Work) snapshot(questions []question) (*Suspended, *wire.SlotError) {
	var buf bytes.Buffer
	if err := w.Sheet.WriteShared(&buf); err != nil {
		return nil, wire.NewSlotError(wire.CodeBadState, fmt.Sprintf("the chunk's state cannot be written: %v", err), false)
	}
	shared := buf.Len()
	if shared > w.Flow.Most {
		return nil, w.tooMuch(fmt.Sprintf("the state shared by the chunk takes %d bytes", shared))
	}
	request := w.Job.Request
	s := &Suspended{Version: stateVersion, Revision: w.Flow.Server.Settings.Revision, Stages: w.Flow.Stages,
		Stage: w.Stage + 1, Params: request.Params, Total: w.Total, Failure: suspendError(w.failure),
		Items: make([]suspendedItem, 0, len(w.Here))}
	for _, q := range questions {
		s.Requests = append(s.Requests, q.suspendedRequest)
	}
	ends := make([]int, 0, len(w.Here)) // of the states in buf, which are contiguous
	for _, item := range w.Here {
		if !item.goes() {
			continue
		}
		start := buf.Len()
		err := w.Sheet.WriteState(&buf, item)
		size := buf.Len() - start
		switch {
		case err != nil:
			item.giveUp(wire.NewSlotError(wire.CodeBadState, fmt.Sprintf("the item's state cannot be written: %v", err), false))
		case size > w.Flow.Most-shared-stateOverhead:
			item.giveUp(w.tooMuch(fmt.Sprintf("the item's state takes %d bytes", size)))
		default:
			s.Items = append(s.Items, suspendedItem{item.Ordinal, item.Key, nil, item.waits})
			ends = append(ends, buf.Len())
			continue
		}
		buf.Truncate(start)
	}
	if shared > 0 {
		s.Shared = buf.Bytes()[:shared:shared]
	}
	for n, start := 0, shared; n < len(s.Items); n++ {
		s.Items[n].State, start = buf.Bytes()[start:ends[n]], ends[n]
	}
	s.Answered = w.Job.Answers.Total
	return s, nil
}

// stateOverhead approximates the bytes of a state besides its items' states.
const stateOverhead = 64 << 10

// send stores the state, then publishes the requests, and waits until JetStream has acknowledged all. A reply that
// arrived before the state was stored would find nothing.
func (w *Work) send(ctx context.Context, body []byte, questions []question) error {
	f := w.Flow
	id := wire.NewFlowID(w.Job.Request.Meta, f.Server.Name, w.Stage)
	header := w.Job.Request.Meta.Request()
	wire.TraceOfHeader(w.Job.Answers.Header).SetHeader(header)
	header[wire.HeaderFlowAnswered] = []string{strconv.Itoa(w.Job.Answers.Total)}
	header[wire.HeaderFlowTotal] = []string{strconv.Itoa(w.Total)}
	header[wire.HeaderFlowAsks] = []string{asks(questions)}
	w.Job.Answers.SetBegun(header)
	f.step("before state")
	timed, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	if err := f.Store.write(timed, id, header, body); err != nil {
		return fmt.Errorf("suspend chunk %s of flow %s: %w", id, f.Server.Name, err)
	}
	f.step("state stored")
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(publishers)
	for n, q := range questions {
		group.Go(func() error {
			if w.Job.Lane() == serve.Calls && stream.HasLane(ctx, f.Store.NC, q.Endpoint) {
				q.msg.Subject = wire.WorkSubject(wire.LaneOf(q.Endpoint))
			}
			if err := f.Store.publish(ctx, q.msg); err != nil {
				return fmt.Errorf("ask endpoint %s for flow %s: %w", q.Endpoint, f.Server.Name, err)
			}
			f.step("request " + strconv.Itoa(n) + " sent")
			return nil
		})
	}
	return group.Wait()
}

// stateTimeout is how long to wait for stream capacity for a state.
const stateTimeout = 5 * time.Second

// publishers bounds the requests of one stage being published concurrently.
const publishers = 8

// turns serializes updates of a chunk in this process, which would conflict. It is safe for concurrent use.
type turns struct {
	mu     sync.Mutex
	chunks map[wire.FlowID]*turn
}

type turn struct {
	free  chan struct{} // holds a value while free
	users int           // holder and waiters
}

// take waits for the turn at a chunk. give releases it.
func (t *turns) take(ctx context.Context, id wire.FlowID) (give func(), err error) {
	now := t.join(id)
	select {
	case <-now.free:
		return func() {
			now.free <- struct{}{}
			t.leave(id, now)
		}, nil
	case <-ctx.Done():
		t.leave(id, now)
		return nil, ctx.Err()
	}
}

func (t *turns) join(id wire.FlowID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.chunks == nil {
		t.chunks = map[wire.FlowID]*turn{}
	}
	now := t.chunks[id]
	if now == nil {
		now = &turn{free: make(chan struct{}, 1)}
		now.free <- struct{}{}
		t.chunks[id] = now
	}
	now.users++
	return now
}

func (t *turns) leave(id wire.FlowID, now *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.users--; now.users == 0 {
		delete(t.chunks, id)
	}
}
