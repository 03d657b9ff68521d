package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	deadLettersAhead = 8
	// deadLettersPause is the least time between bindings of the consumer.
	deadLettersPause = time.Second
)

// Letters stores and resends dead letters.
type Letters struct {
	node      *core.Core
	endpoints core.Ensurer
	after     core.OutcomeObserver
	reader    *core.SharedConsumer // of the stream of dead letters
	requeued  chan struct{}        // signaled when requeued dead letters wait to be sent
	exhausted chan exhaustion
}

// NewLetters returns a store of dead letters.
func NewLetters(k *core.Core, endpoints core.Ensurer, after core.OutcomeObserver) *Letters {
	return &Letters{node: k, endpoints: endpoints, after: after,
		reader:   core.NewShared(k, wire.StreamDead, wire.DeadLetterConsumer, stream.EnsureDeadLetterReader),
		requeued: make(chan struct{}, 1), exhausted: make(chan exhaustion, advisoryRoom)}
}

// keep stores a dead letter unless it is stored already, and logs a new one.
func (l *Letters) keep(ctx context.Context, letter *deadletter.DeadLetter) error {
	isNew, err := deadletter.New(l.node.Store).Add(ctx, *letter)
	if isNew {
		l.node.Stats.Buried.Add(1)
		l.node.Meter.Happened(core.EventDead, letter.Endpoint, 1)
		l.node.Log.Warn("dead letter", zap.String("endpoint", letter.Endpoint), zap.String("cause", letter.Cause),
			zap.String("service", letter.Service))
		l.node.Log.Debug("dead letter", zap.String("message", letter.Message)) // may quote the item
	}
	return err
}

// GivenUp stores a request that a service abandoned after too many deliveries.
func (l *Letters) GivenUp(ctx context.Context, a *settle.Answer, run uuid.UUID) error {
	timed, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	// The request no longer exists; its letter has the id that a node would give it.
	request := nats.Header{wire.HeaderMsgID: {a.Slice.String()}}
	return l.keep(timed, &deadletter.DeadLetter{
		MsgID: wire.DeadMsgID(request), Endpoint: a.Endpoint, Cause: a.Failure.Code, Message: a.Failure.Message,
		Mode: string(wire.ModeBatch), Run: known[workqueue.RunID](run), Slice: &a.Slice, Root: &a.Slice,
		Service: a.Service, State: deadletter.LetterReissued, NoBody: true,
	})
}

// ReadDeadLetters stores dead letters in PostgreSQL until ctx ends. It rebinds to lost streams and consumers.
func (l *Letters) ReadDeadLetters(ctx, draining context.Context) {
	for ctx.Err() == nil {
		if err := l.readDeadLettersBound(ctx, draining); err != nil && ctx.Err() == nil {
			l.node.Log.Warn("read dead letters", zap.Error(err))
		}
		_ = backoff.Sleep(ctx, deadLettersPause)
	}
}

// readDeadLettersBound stores dead letters until ctx ends or the binding is lost, including prefetched ones.
func (l *Letters) readDeadLettersBound(ctx, draining context.Context) error {
	made, err := l.reader.Bind(ctx)
	if err != nil {
		return err
	}
	bound, unbind := context.WithCancel(ctx)
	defer unbind()
	var failed error
	err = pull.Read(bound, pull.Source{
		JS: l.node.JS, Stream: wire.StreamDead, Consumer: wire.DeadLetterConsumer, Made: made,
		Messages: deadLettersAhead, Bytes: max(core.RecordBytes, 2*int(l.node.NC.MaxPayload())),
	}, func(msg jetstream.Msg) {
		if failed == nil {
			failed = l.buryDeadLetter(draining, msg, made)
		}
		if failed != nil {
			l.reader.Settle(core.Message{Msg: msg, Made: made}, core.GiveBack)
			unbind()
		}
	})
	if failed != nil {
		// Retry fails only once ctx is done.
		_ = l.node.Retry(ctx, "reach PostgreSQL to keep dead letters", inspect.New(l.node.Store).Ping)
		return failed
	}
	return err
}

// buryDeadLetter stores and acknowledges a dead letter. PostgreSQL may refuse its contents: then they are omitted, or
// it would be redelivered indefinitely.
func (l *Letters) buryDeadLetter(ctx context.Context, msg jetstream.Msg, made time.Time) error {
	if stream.IsProbe(msg.Subject()) {
		l.reader.Settle(core.Message{Msg: msg, Made: made}, jetstream.Msg.Ack)
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	letter := deadLetterIn(msg)
	err := l.keep(timed, &letter)
	if workqueue.Refused(err) {
		err = l.keep(timed, &deadletter.DeadLetter{MsgID: letter.MsgID, Endpoint: letter.Endpoint, Cause: causeUnreadable,
			Message: err.Error(), NoBody: true})
	}
	if err != nil {
		return err
	}
	// Only after the commit: after a crash in between it is redelivered.
	l.reader.Settle(core.Message{Msg: msg, Made: made}, jetstream.Msg.Ack)
	return nil
}

// causeUnreadable is the cause of a dead letter without a readable endpoint.
const causeUnreadable = "unreadable"

// deadLetterIn converts a message. An invalid one also becomes a dead letter, or it would be redelivered
// indefinitely.
func deadLetterIn(msg jetstream.Msg) deadletter.DeadLetter {
	d, err := wire.ParseDeadLetter(msg.Subject(), msg.Headers(), msg.Data())
	letter := deadLetterOf(&d)
	if err != nil {
		letter.Endpoint, letter.Cause = "", causeUnreadable // it cannot be resent
		letter.Message = fmt.Sprintf("%v; its cause was %s: %s", err, d.Cause, d.Message)
	}
	return letter
}

func deadLetterOf(d *wire.DeadLetter) deadletter.DeadLetter {
	letter := deadletter.DeadLetter{
		MsgID: d.MsgID, Endpoint: d.Endpoint, Cause: d.Cause, Message: d.Message, Mode: string(d.Mode),
		Run: known[workqueue.RunID](d.Run), Slice: known[workqueue.SliceID](d.Slice),
		Root: known[workqueue.SliceID](d.Root), Stack: d.Stack, Origin: d.Origin, Service: d.Service,
		Deliveries: d.Deliveries, Requeued: d.Requeued, Items: d.Items, Headers: d.Header, Body: d.Body,
		NoBody: d.Omitted > 0,
	}
	if d.At.Year() >= 2000 && d.At.Before(time.Now().Add(24*time.Hour)) { // plausible, and valid in PostgreSQL
		letter.At = d.At
	}
	return letter
}

func exhaustedDeadLetter(endpoint string, x exhaustion, msg *jetstream.RawStreamMsg) deadletter.DeadLetter {
	d, _ := wire.ParseDeadLetter(wire.DeadSubject(endpoint), msg.Header, msg.Data) // the endpoint is known
	letter := deadLetterOf(&d)
	letter.MsgID = wire.DeadMsgID(msg.Header)
	if letter.MsgID == "" { // use its place in the stream
		letter.MsgID = fmt.Sprintf("dead.%s.%d.%d", x.Stream, msg.Sequence, msg.Time.UnixNano())
	}
	letter.Endpoint, letter.Cause, letter.Deliveries = endpoint, wire.CodeDeliveries, x.Deliveries
	letter.Message = fmt.Sprintf("delivered %d times and never acknowledged", x.Deliveries)
	if x.Deliveries < 1 { // the consumer's limit was removed
		letter.Message = "no longer delivered, and never acknowledged"
	}
	return letter
}

func known[T ~[16]byte](id uuid.UUID) *T {
	if id == uuid.Nil {
		return nil
	}
	return new(T(id))
}

const deadLetterBatch = 100

// PublishDeadLetters sends requeued dead letters whenever signaled, until ctx ends. The id differs per requeue and
// is the same on every node, so JetStream stores each once. If JetStream then loses it, it is not reissued.
func (l *Letters) PublishDeadLetters(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.requeued:
		}
		if err := l.publishUnsent(ctx); err != nil && ctx.Err() == nil {
			l.node.Log.Warn("send requeued dead letters; the leader will retry", zap.Error(err))
		}
	}
}

// Resend makes this node send requeued dead letters now.
func (l *Letters) Resend() { core.Signal(l.requeued) }

// publishUnsent sends requeued dead letters. A failing endpoint does not hold up the rest.
func (l *Letters) publishUnsent(ctx context.Context) (failed error) {
	skip := []string{}
	for {
		reading, cancel := context.WithTimeout(ctx, core.ReadTimeout)
		waiting, err := deadletter.New(l.node.Store).UnsentLetters(reading, deadLetterBatch, skip...)
		cancel()
		if err != nil || len(waiting) == 0 {
			return errors.Join(failed, err)
		}
		var sent []workqueue.LetterID
		for i := range waiting {
			of := &waiting[i]
			if slices.Contains(skip, of.Endpoint) {
				continue
			}
			err := l.publishDeadLetter(ctx, of)
			switch {
			case err == nil:
				sent = append(sent, of.ID)
			case unsendable(err):
				l.node.Log.Warn("a requeued dead letter cannot be sent", zap.Stringer("dead_letter", of.ID), zap.Error(err))
				if err := deadletter.New(l.node.Store).LetterUnsendable(ctx, of.ID, err.Error()); err != nil {
					return err
				}
			default:
				skip, failed = append(skip, of.Endpoint), errors.Join(failed, err)
			}
		}
		l.node.Stats.Requeued.Add(int64(len(sent)))
		if err := deadletter.New(l.node.Store).LettersSent(ctx, sent); err != nil {
			return errors.Join(failed, err)
		}
	}
}

func unsendable(err error) bool {
	_, name := errors.AsType[*wire.NameError](err)
	return name || errors.Is(err, nats.ErrMaxPayload)
}

func (l *Letters) publishDeadLetter(ctx context.Context, of *deadletter.UnsentLetter) error {
	if _, err := l.endpoints.Ensure(ctx, of.Endpoint); err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, core.PublishTimeout)
	defer cancel()
	_, err := l.node.JS.PublishMsg(timed, requeued(of))
	return err
}

// requeued returns the request of a dead letter without the headers added since.
func requeued(l *deadletter.UnsentLetter) *nats.Msg {
	msg := &nats.Msg{Subject: wire.WorkSubject(l.Endpoint), Header: nats.Header{}, Data: l.Body}
	for name, values := range l.Headers {
		if strings.HasPrefix(name, natsHeaders) || strings.HasPrefix(name, deadHeaders) {
			continue
		}
		msg.Header[name] = values
	}
	count := strconv.Itoa(l.Requeued)
	msg.Header.Set(wire.HeaderRequeued, count)
	msg.Header.Set(wire.HeaderMsgID, uuid.NewSHA1(uuid.UUID(l.ID), []byte(count)).String())
	return msg
}

const (
	// deadHeaders is the prefix of headers that dead letters get.
	deadHeaders = "Tranche-Dead-"
	// natsHeaders is the prefix of headers that instruct a NATS server.
	natsHeaders = "Nats-"
)

// Requeue sends dead letters to their endpoints again. See [deadletter.Store.Requeue].
func (l *Letters) Requeue(ctx context.Context, sel deadletter.DeadSelection, actor string) (deadletter.Requeue, error) {
	requeue, err := deadletter.New(l.node.Store).Requeue(ctx, sel, actor)
	if err == nil {
		l.Resend()
	}
	return requeue, err
}
