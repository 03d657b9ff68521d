package deadletter

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// deadLetterBatch bounds the requeued dead letters of one reading.
const deadLetterBatch = 100

// PublishDeadLetters sends requeued dead letters to their endpoints, whenever told to, until ctx ends. One is published
// under an id of its own for each time that it is requeued, so that two nodes that publish the same one store it once.
//
// Once it is in the stream it is a request like any other of a single item: should JetStream lose it, nobody issues it
// again.
func (l *Letters) PublishDeadLetters(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.requeued:
		}
		if err := l.publishUnsent(ctx); err != nil && ctx.Err() == nil {
			l.node.Log.Warn("send requeued dead letters; the leader will see to it again", zap.Error(err))
		}
	}
}

// Resend has this node look for requeued dead letters that are not sent.
func (l *Letters) Resend() { kernel.Signal(l.requeued) }

// publishUnsent sends what was requeued and is not known to be sent. An endpoint that cannot be sent to holds up no
// other.
func (l *Letters) publishUnsent(ctx context.Context) (failed error) {
	skip := []string{}
	for {
		reading, cancel := context.WithTimeout(ctx, kernel.ReadTimeout)
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

// unsendable tells the errors that another try meets again.
func unsendable(err error) bool {
	_, name := errors.AsType[*wire.NameError](err)
	return name || errors.Is(err, nats.ErrMaxPayload)
}

func (l *Letters) publishDeadLetter(ctx context.Context, of *deadletter.UnsentLetter) error {
	if _, err := l.endpoints.Ensure(ctx, of.Endpoint); err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, kernel.PublishTimeout)
	defer cancel()
	_, err := l.node.JS.PublishMsg(timed, requeued(of))
	return err
}

// requeued is the request of a dead letter, to be sent again: as it came, without what JetStream and the letter's end
// have put on it.
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
	// deadHeaders begins the names of the headers that a request gets when it dies.
	deadHeaders = "Tranche-Dead-"
	// natsHeaders begins the names of those by which a NATS server is told what to do.
	natsHeaders = "Nats-"
)

// Requeue has dead letters sent to their endpoints again. See [deadletter.Store.Requeue].
func (l *Letters) Requeue(ctx context.Context, sel deadletter.DeadSelection, actor string) (deadletter.Requeue, error) {
	requeue, err := deadletter.New(l.node.Store).Requeue(ctx, sel, actor)
	if err == nil {
		l.Resend()
	}
	return requeue, err
}
