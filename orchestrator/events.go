package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

const eventBatch = 100

// publishEvents publishes what happened to runs, whenever told to, until ctx ends. An event is published under its id,
// so that two nodes that publish the same one store it once.
func (n *Node) publishEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.publish:
		}
		timed, cancel := context.WithTimeout(ctx, publishTimeout)
		more, err := n.publishSome(timed)
		cancel()
		if err != nil && ctx.Err() == nil {
			n.log.Warn("publish events; the leader will see to it again", zap.Error(err))
		}
		if more && err == nil {
			signal(n.publish)
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

func (n *Node) publishSome(ctx context.Context) (more bool, err error) {
	events, err := n.store.UnpublishedEvents(ctx, eventBatch)
	if err != nil || len(events) == 0 {
		return false, err
	}
	var published []uuid.UUID
	var failed error
	for _, e := range events {
		subject, body, err := eventMessage(e)
		if err != nil {
			return false, err
		}
		msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
		if _, failed = n.js.PublishMsg(ctx, msg, jetstream.WithMsgID(e.ID.String())); failed != nil {
			break
		}
		published = append(published, e.ID)
	}
	if len(published) > 0 {
		err = n.store.EventsPublished(ctx, published)
	}
	return len(events) == eventBatch, errors.Join(failed, err)
}

// eventMessage puts an event into words. What happened to a tracker is in the outbox as everybody gets it.
func eventMessage(e workqueue.Event) (subject string, body []byte, err error) {
	if strings.HasPrefix(string(e.Kind), "tracker.") {
		return endpoints.EventSubject(string(e.Kind)), e.Payload, nil
	}
	body, err = json.Marshal(event{e.ID, e.Run, int(e.Generation), string(e.Kind), e.At, e.Payload})
	if strings.HasPrefix(string(e.Kind), "schedule.") { // which may have no run
		return endpoints.EventSubject(string(e.Kind)), body, err
	}
	return endpoints.EventSubject("run." + string(e.Kind)), body, err
}
