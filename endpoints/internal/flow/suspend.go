package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// suspend leaves the chunk in the stream and sends the requests that it waits for. The failure it returns speaks for
// the items that cannot be suspended. When NATS takes no part of it, the job hands its message back.
//
// The message that brought us here is acknowledged after that, so a crash at any point repeats the stage, and
// everything that it sends has the id that it had before.
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
		if isFull(err) {
			// A later stage keeps its state until the next one's is stored. If all waited for room, there would never be any.
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

// isFull reports whether a stream has refused a message because it has no room.
func isFull(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == serve.StreamFull
}

// State writes the state, and from here on refuses answers to this stage: what is not in the state by now is lost.
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
	a.Flush() // while the rest is on its way
	return body, nil
}

// tooMuchState is not retryable: a node then takes the chunk apart at once, until its pieces fit.
func (w *Work) tooMuch(what string) *wire.SlotError {
	return wire.NewSlotError(wire.CodeStateTooLarge,
		fmt.Sprintf("%s, and a flow keeps at most %d bytes between stages; keep less, "+
			"use smaller chunks, or store the data elsewhere and keep where it is", what, w.Flow.Most), false)
}

// snapshot collects what the next stage needs. Items that alone are too much are failed. Called with answers.mu held.
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
	ends := make([]int, 0, len(w.Here)) // of the states in buf, each of which begins where the one before ends
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

// stateOverhead is about what a state takes beside the states of its items.
const stateOverhead = 64 << 10

// send stores the state and then publishes the requests. It returns once JetStream has acknowledged all of it: a reply
// that came back before its state was there would have nowhere to go.
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
	if err := f.writeState(ctx, id, header, body); err != nil {
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

// stateTimeout is how long room for a state is waited for.
const stateTimeout = 5 * time.Second

func (f *Flow) writeState(ctx context.Context, id wire.FlowID, header nats.Header, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	return f.Store.write(ctx, id, header, body)
}

// publishers bounds how many requests of one stage are on their way to the server at once.
const publishers = 8

// turns has those who would change the same chunk here take turns: each change reads what the one before has written,
// so that to try at once is to try again.
//
// It is safe for concurrent use. The zero turns is ready.
type turns struct {
	mu     sync.Mutex
	chunks map[wire.FlowID]*turn
}

// turn is whose turn it is at one chunk.
type turn struct {
	free  chan struct{} // holds one while no one is at it
	users int           // who is at it or waits
}

// take waits for the turn at a chunk, which give ends.
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
