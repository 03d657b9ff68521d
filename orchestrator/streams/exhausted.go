package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// advisories is the prefix of advisories on messages no longer delivered; stream and consumer follow.
	advisories = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES."
	// advisoryQueue is the queue group in which one node gets each advisory.
	advisoryQueue = "tranche"
	// advisoryRoom limits queued advisories. The leader's sweep finds the rest.
	advisoryRoom = 256
)

// exhaustion is a message that reached its delivery limit unacknowledged. The server leaves it in the stream.
type exhaustion struct {
	Stream     string    `json:"stream"`
	Consumer   string    `json:"consumer"`
	Sequence   uint64    `json:"stream_seq"`
	Deliveries int       `json:"deliveries"`
	Timestamp  time.Time `json:"timestamp"`
}

// HearAdvisories subscribes for [Letters.RemoveExhausted]. Beyond its queue, the leader's sweep handles the rest.
func (l *Letters) HearAdvisories() (subs []*nats.Subscription, err error) {
	for _, stream := range []string{wire.StreamWork, wire.StreamStage} {
		sub, err := l.node.NC.QueueSubscribe(advisories+stream+".*", advisoryQueue, func(msg *nats.Msg) {
			var x exhaustion
			if json.Unmarshal(msg.Data, &x) != nil || x.Stream != stream {
				return
			}
			select {
			case l.exhausted <- x:
			default:
			}
		})
		if err != nil {
			return subs, fmt.Errorf("orchestrator: subscribe to advisories of %s: %w", stream, err)
		}
		subs = append(subs, sub)
	}
	return subs, nil
}

// RemoveExhausted removes messages named by advisories until ctx ends.
func (l *Letters) RemoveExhausted(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-l.exhausted:
			if err := l.giveUp(ctx, x); err != nil && ctx.Err() == nil {
				l.node.Log.Warn("remove a message that is no longer delivered; the leader will retry",
					zap.String("stream", x.Stream), zap.Uint64("sequence", x.Sequence), zap.Error(err))
			}
		}
	}
}

// giveUp removes a message no longer delivered. It stores the dead letter, then notifies the requester, then deletes
// it: repeating this after a crash is harmless.
func (l *Letters) giveUp(ctx context.Context, x exhaustion) error {
	ctx, cancel := context.WithTimeout(ctx, giveUpTimeout)
	defer cancel()
	stream, err := l.node.JS.Stream(ctx, x.Stream)
	if err != nil {
		return fmt.Errorf("check stream %s: %w", x.Stream, err)
	}
	made := stream.CachedInfo().Created
	if made.After(x.Timestamp) {
		return nil // the sequence now belongs to another message
	}
	msg, err := stream.GetMsg(ctx, x.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil // it was removed already
	}
	if err != nil {
		return fmt.Errorf("read message %d: %w", x.Sequence, err)
	}
	if done, err := l.wasDelivered(ctx, x, msg); err != nil || !done {
		return err
	}
	if err := l.store(ctx, x, msg); err != nil {
		return err
	}
	again, err := l.node.JS.Stream(ctx, x.Stream)
	if err != nil || !again.CachedInfo().Created.Equal(made) {
		return err
	}
	if err := stream.DeleteMsg(ctx, x.Sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("delete message %d: %w", x.Sequence, err)
	}
	l.node.Stats.Exhausted.Add(1)
	return nil
}

// wasDelivered checks that the message's own consumer delivered it: any publisher can forge an advisory, and other
// consumers take nothing from ours.
func (l *Letters) wasDelivered(ctx context.Context, x exhaustion, msg *jetstream.RawStreamMsg) (bool, error) {
	of := OfWork
	if x.Stream == wire.StreamStage {
		of = OfStage
	}
	if msg.Time.After(x.Timestamp) || x.Consumer != of(msg.Subject) {
		return false, nil
	}
	consumer, err := l.node.JS.Consumer(ctx, x.Stream, x.Consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrInvalidConsumerName) {
		return false, nil // a new consumer delivers the message again
	}
	if err != nil {
		return false, fmt.Errorf("check consumer %s: %w", x.Consumer, err)
	}
	return consumer.CachedInfo().Delivered.Stream >= x.Sequence, nil
}

// giveUpTimeout limits the removal of one message; the sweep retries it.
const giveUpTimeout = 15 * time.Second

func (l *Letters) store(ctx context.Context, x exhaustion, msg *jetstream.RawStreamMsg) error {
	letter, notify := l.exhaustedRequest(x, msg)
	if x.Stream == wire.StreamStage {
		letter, notify = l.exhaustedAnswer(ctx, x, msg)
	}
	if err := l.keep(ctx, &letter); err != nil {
		return err
	}
	if notify == nil {
		return nil
	}
	return notify(ctx)
}

// exhaustedRequest returns the dead letter of a request that was delivered too often, and what notifies the caller.
func (l *Letters) exhaustedRequest(x exhaustion, msg *jetstream.RawStreamMsg,
) (letter deadletter.DeadLetter, notify func(context.Context) error) {
	of := OfConsumer(OfWork(msg.Subject))
	letter = exhaustedDeadLetter(of, x, msg)
	meta, err := wire.ReadMeta(msg.Header)
	if err != nil {
		letter.Message = fmt.Sprintf("%s; %v", letter.Message, err)
		return letter, nil // the requester is unknown
	}
	if meta.Mode == wire.ModeBatch && meta.ReplyTo.Call == "" {
		letter.State = deadletter.LetterReissued
	}
	return letter, func(ctx context.Context) error { return l.failCaller(ctx, msg.Header, of, letter.Message) }
}

// exhaustedAnswer returns the dead letter of a reply that was delivered too often to a flow, and what notifies the
// requester of the waiting chunk. It cannot be resent: it is not a request.
func (l *Letters) exhaustedAnswer(ctx context.Context, x exhaustion, msg *jetstream.RawStreamMsg,
) (letter deadletter.DeadLetter, notify func(context.Context) error) {
	of := OfStage(msg.Subject)
	letter = exhaustedDeadLetter(of, x, msg)
	letter.Message += ", a reply on its way back into a flow (" + msg.Subject + ")"
	letter.State = deadletter.LetterReissued
	meta, err := wire.ReadMeta(msg.Header)
	if err != nil {
		return letter, nil
	}
	state, err := l.flowState(ctx, of, meta)
	if err != nil {
		return letter, func(context.Context) error { return err }
	}
	if state == nil {
		return letter, nil // the chunk has continued, or was abandoned
	}
	letter.Stack = state.Get(wire.HeaderStack)
	letter.Origin = state.Get(wire.HeaderOrigin)
	return letter, func(ctx context.Context) error { return l.failCaller(ctx, state, of, letter.Message) }
}

// flowState returns the headers of the state of the chunk that waits for an answer, nil if none does.
func (l *Letters) flowState(ctx context.Context, endpoint string, answer wire.Meta) (nats.Header, error) {
	flows, err := l.node.JS.Stream(ctx, wire.StreamFlow)
	if err != nil {
		return nil, fmt.Errorf("check stream %s: %w", wire.StreamFlow, err)
	}
	msg, err := flows.GetLastMsgForSubject(ctx, wire.FlowStateSubject(endpoint, answer.Slice))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of flow %s: %w", answer.Slice, err)
	}
	if msg.Header.Get(wire.HeaderSlice) == "" {
		return nil, nil // the flow is finished
	}
	return msg.Header, nil
}

// failCaller answers a request with the failure CodeDeliveries, or releases the slice of a node's request.
func (l *Letters) failCaller(ctx context.Context, request nats.Header, endpoint, message string) error {
	meta, err := wire.ReadMeta(request)
	if err != nil {
		l.node.Log.Warn("an abandoned request does not name its requester", zap.Error(err))
		return nil
	}
	failure := wire.SlotError{Code: wire.CodeDeliveries, Message: message, Retry: true}
	switch {
	case meta.ReplyTo.IsZero():
		return l.giveSliceBack(ctx, settle.Answer{Slice: workqueue.SliceID(meta.Slice), Endpoint: endpoint,
			Service: l.node.Name, Answered: wire.AnsweredBefore(request), Failure: core.SlotError(&failure)})
	case meta.ReplyTo.Callee != endpoint:
		l.node.Log.Warn("a request names another endpoint to reply", zap.String("endpoint", endpoint),
			zap.String("reply_to", meta.ReplyTo.String()))
		return nil
	}
	msg := wire.FailureMsg(request, meta.ReplyTo, l.node.Name, failure)
	if meta.ReplyTo.Call != "" { // replies to a caller are not stored
		return l.node.NC.PublishMsg(msg)
	}
	if _, err := l.node.JS.PublishMsg(ctx, msg); err != nil {
		return fmt.Errorf("tell flow %s: %w", meta.ReplyTo.Asker, err)
	}
	return nil
}

// giveSliceBack records a failure of a slice, as if its service had sent it. An ended slice is left unchanged. Slots
// sent earlier are still awaited.
func (l *Letters) giveSliceBack(ctx context.Context, failed settle.Answer) error {
	out, err := l.node.Settling.Record(ctx, []settle.Answer{failed})
	if err != nil {
		return err
	}
	l.node.WakeOthers()
	l.after.Seen(out, time.Now())
	return nil
}

const sweepBatch = 100

// settledMark is the sequence up to which a consumer had nothing left to deliver or await, with its incarnation.
type settledMark struct {
	stream, consumer time.Time // creation times
	upTo             uint64
}

// ExhaustedSweep removes messages whose advisory was missed. It is for one goroutine.
type ExhaustedSweep struct {
	*Letters

	marks map[string]settledMark // by stream and consumer, of the previous sweep
}

// Sweeping returns a sweep that starts afresh.
func (l *Letters) Sweeping() *ExhaustedSweep { return &ExhaustedSweep{Letters: l} }

// Forget drops what earlier sweeps found.
func (s *ExhaustedSweep) Forget() { s.marks = nil }

// Sweep removes messages left although their consumer is done with them: those up to its acknowledgement floor and,
// when no acknowledgement is pending, up to its last delivery. Only those also left at the previous sweep count,
// since an acknowledgement and the removal of its message are not one step.
func (s *ExhaustedSweep) Sweep(ctx context.Context, all []ConsumersOf) error {
	marks := make(map[string]settledMark, len(s.marks))
	var failed error
	for _, of := range all {
		for name, info := range of.Consumers {
			key := of.Name + " " + name
			mark := settledMark{of.Made, info.Created, info.AckFloor.Stream}
			if info.NumAckPending == 0 {
				mark.upTo = max(mark.upTo, info.Delivered.Stream)
			}
			marks[key] = mark
			before := s.marks[key]
			if !before.stream.Equal(mark.stream) || !before.consumer.Equal(mark.consumer) ||
				of.Held[name] <= info.NumPending+uint64(info.NumAckPending) {
				continue
			}
			failed = errors.Join(failed, s.sweepConsumer(ctx, of, info, min(before.upTo, mark.upTo)))
		}
	}
	s.marks = marks
	return failed
}

func (l *Letters) sweepConsumer(
	ctx context.Context, of ConsumersOf, info *jetstream.ConsumerInfo, upTo uint64,
) error {
	for next, i := of.First, 0; next <= upTo && i < sweepBatch; i++ {
		msg, err := of.Stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(info.Config.FilterSubject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find messages of consumer %s: %w", info.Name, err)
		}
		if msg.Sequence > upTo {
			return nil
		}
		next = msg.Sequence + 1
		l.node.Log.Debug("found a message that is no longer delivered", zap.String("stream", of.Name),
			zap.Uint64("sequence", msg.Sequence))
		err = l.giveUp(ctx, exhaustion{Stream: of.Name, Consumer: info.Name, Sequence: msg.Sequence,
			Deliveries: info.Config.MaxDeliver, Timestamp: msg.Time})
		if err != nil {
			return err
		}
	}
	return nil
}
