package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const eventBatch = 100

type publisher struct {
	node    *core.Core
	streams *streams.Keeper
	fresh   *freshEvents // committed by this node just now
}

// Run publishes the outbox whenever signaled, until ctx ends. JetStream stores each event id once, also of two
// nodes.
func (p *publisher) Run(ctx context.Context) {
	var silent string
	var told time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.node.Publish:
		}
		unmarked := p.fresh.mark(func(ids []uuid.UUID) error { return p.markPublished(ctx, ids) })
		err := errors.Join(unmarked, p.publishWaiting(ctx))
		if err == nil {
			silent = ""
			continue
		}
		if text := err.Error(); ctx.Err() == nil && (text != silent || time.Since(told) >= core.SameError) {
			p.node.Log.Warn("publish events; the leader will retry", zap.Error(err))
			silent, told = text, time.Now()
		}
	}
}

// event is the body of a message on tranche.event.run.<kind>.
type event struct {
	ID         uuid.UUID       `json:"id"`
	Run        workqueue.RunID `json:"run,omitzero"`
	Generation int             `json:"generation"`
	Kind       string          `json:"kind"`
	At         time.Time       `json:"at"`
	Detail     json.RawMessage `json:"detail"`
}

// eventPass publishes the outbox once, oldest first. Refused kinds and too large events do not hold up the rest.
type eventPass struct {
	*publisher

	at      inspect.EventPlace // of the last event read
	refused []workqueue.EventKind
	failed  error
}

func (p *publisher) publishWaiting(ctx context.Context) error {
	pass := &eventPass{publisher: p}
	for {
		more, err := pass.some(ctx)
		if err != nil || !more {
			return errors.Join(pass.failed, err)
		}
	}
}

// some publishes the next batch. An error is about NATS or PostgreSQL, and ends the pass.
func (p *eventPass) some(ctx context.Context) (more bool, err error) {
	reading, cancel := context.WithTimeout(ctx, core.PublishTimeout)
	defer cancel()
	events, err := inspect.New(p.node.Store).UnpublishedEvents(reading, p.at, p.refused, eventBatch)
	if err != nil || len(events) == 0 {
		return false, err
	}
	var published []uuid.UUID
	var failed error
	for i := range events {
		e := &events[i]
		if slices.Contains(p.refused, e.Kind) || p.fresh.passes(e.ID) {
			continue
		}
		if failed = p.publishEvent(ctx, e); failed == nil {
			published = append(published, e.ID)
		} else if !p.passOver(e, failed) {
			break
		} else {
			failed = nil
		}
	}
	last := &events[len(events)-1]
	p.at = inspect.EventPlace{At: last.At, ID: last.ID}
	return len(events) == eventBatch, errors.Join(failed, p.markPublished(ctx, published))
}

func (p *publisher) markPublished(ctx context.Context, published []uuid.UUID) error {
	if len(published) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, core.PublishTimeout)
	defer cancel()
	return inspect.New(p.node.Store).EventsPublished(ctx, published)
}

const tooLargeForStream jetstream.ErrorCode = 10054

// passOver reports whether an error concerns only this event or its kind, and notes it then. An error without an
// answer concerns neither.
func (p *eventPass) passOver(e *workqueue.Event, err error) bool {
	answer, answered := errors.AsType[*jetstream.APIError](err)
	_, unwritable := errors.AsType[*json.MarshalerError](err)
	alone := unwritable || errors.Is(err, nats.ErrMaxPayload) || answered && answer.ErrorCode == tooLargeForStream
	refused := answered || errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, jetstream.ErrNoStreamResponse)
	switch {
	case alone:
	case refused:
		p.refused = append(p.refused, e.Kind)
	default:
		return false
	}
	if p.failed == nil { // the first is enough: there may be as many as events
		p.failed = fmt.Errorf("event %s, %s: %w", e.ID, e.Kind, err)
	}
	return true
}

func (p *publisher) publishEvent(ctx context.Context, e *workqueue.Event) error {
	ctx, cancel := context.WithTimeout(ctx, core.PublishTimeout) // per event: a slow NATS takes one at a time
	defer cancel()
	subject, body, err := eventMessage(e)
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	err = stream.During(ctx, p.node.NC, func(ctx context.Context) error {
		_, err := p.node.JS.PublishMsg(ctx, msg, jetstream.WithMsgID(e.ID.String()))
		return err
	}, subject)
	if errors.Is(err, context.DeadlineExceeded) {
		p.streams.Suspect(wire.StreamEvent)
	}
	return err
}

// eventMessage returns an event's message. The outbox has the events of trackers as subscribers get them.
func eventMessage(e *workqueue.Event) (subject string, body []byte, err error) {
	if strings.HasPrefix(string(e.Kind), "tracker.") {
		return wire.EventSubject(string(e.Kind)), e.Payload, nil
	}
	body, err = json.Marshal(event{e.ID, e.Run, int(e.Generation), string(e.Kind), e.At, e.Payload})
	if strings.Contains(string(e.Kind), ".") { // of a schedule or the database: there may be no run
		return wire.EventSubject(string(e.Kind)), body, err
	}
	return wire.EventSubject("run." + string(e.Kind)), body, err
}

// Announce logs completed runs and publishes their events now. came is when the reply that completed them came.
func (p *publisher) Announce(completed []settle.Completion, came time.Time) {
	for _, c := range completed {
		p.node.Log.Info("run completed", zap.Stringer("run", c.Run), zap.Int32("generation", int32(c.Generation)),
			zap.Int64("done", c.Done), zap.Int64("failed", c.Failed))
		p.fresh.add(freshEvent{c.Event, came})
		outcome := core.OutcomeClean
		if c.Failed > 0 {
			outcome = core.OutcomeFailures
		}
		p.node.Meter.Happened(core.EventCompleted, outcome, 1)
	}
}

// maxFresh limits the events that bypass the outbox's reader, which publishes the rest.
const maxFresh = 1000

const freshAtOnce = 16

// freshEvents are completions just committed by this node, published without reading the outbox. One lost here, with
// the node or because NATS refused it, is published from the outbox under the same id. Subscribers over core NATS do
// not deduplicate, so the outbox's reader skips events held here, and those it has published are not added.
type freshEvents struct {
	mu        sync.Mutex
	events    []freshEvent
	published []uuid.UUID            // not yet marked in the outbox
	held      map[uuid.UUID]struct{} // events, those being published, and published
	read      [maxFresh]uuid.UUID    // ring of the last ids published from the outbox
	next      int                    // index into read
	come      chan struct{}
}

// freshEvent is an event, and when the reply behind it came: zero if that delay is not metered.
type freshEvent struct {
	workqueue.Event

	came time.Time
}

func newFreshEvents() *freshEvents {
	return &freshEvents{held: map[uuid.UUID]struct{}{}, come: make(chan struct{}, 1)}
}

func (f *freshEvents) add(e freshEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) < maxFresh && !slices.Contains(f.read[:], e.ID) {
		f.events = append(f.events, e)
		f.held[e.ID] = struct{}{}
	}
	core.Signal(f.come)
}

// passes reports whether the outbox's reader skips an event. Else it notes that the reader publishes it.
func (f *freshEvents) passes(id uuid.UUID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, held := f.held[id]; held {
		return true
	}
	f.read[f.next] = id
	f.next = (f.next + 1) % maxFresh
	return false
}

func (f *freshEvents) take() []freshEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := f.events
	f.events = nil
	return events
}

// end notes that an event was published, or leaves it to the outbox's reader.
func (f *freshEvents) end(id uuid.UUID, published bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if published {
		f.published = append(f.published, id)
	} else {
		delete(f.held, id)
	}
}

// mark calls mark with the published ids. The outbox's reader, which calls it, skips them until it returns.
func (f *freshEvents) mark(mark func([]uuid.UUID) error) error {
	f.mu.Lock()
	ids := f.published
	f.published = nil
	f.mu.Unlock()
	err := mark(ids)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		delete(f.held, id)
	}
	return err
}

// RunFresh publishes this node's new completions, until ctx ends. [publisher.Run] marks them in the outbox.
func (p *publisher) RunFresh(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.fresh.come:
		}
		var publishing sync.WaitGroup
		events := p.fresh.take()
		for some := range slices.Chunk(events, max(1, (len(events)+freshAtOnce-1)/freshAtOnce)) {
			publishing.Go(func() {
				for i := range some {
					e := &some[i]
					published := p.publishEvent(ctx, &e.Event) == nil // the next pass over the outbox logs the reason
					if published {
						if !e.came.IsZero() {
							p.node.Meter.Took(core.TimingCompletion, time.Since(e.came))
						}
						p.node.Faults.Hit(fault.EventPublished)
					}
					p.fresh.end(e.ID, published)
				}
			})
		}
		publishing.Wait()
		p.node.PublishEvents()
	}
}
