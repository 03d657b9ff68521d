package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	thiefPulls = 32 // a service's own pulls get a turn between them
	thefts     = 20
)

func deliveryChecks() []check {
	const section = "Acknowledgement"
	return []check{
		{"redelivered", "a request that another instance gave back is answered", section, 0, checkRedelivered},
		{"deliveries", "a request that was delivered too often is answered too_many_deliveries", section, 0, checkDeliveries},
	}
}

func checkRedelivered(ctx context.Context, n *node) error {
	r, err := n.givenBack(ctx, func() *request { return n.sample(3) })
	if err != nil {
		return err
	}
	a, err := n.answer(ctx, r, 0)
	if err != nil {
		return err
	}
	return a.exactly(r)
}

func checkDeliveries(ctx context.Context, n *node) error {
	r, err := n.givenBack(ctx, func() *request {
		r := n.sample(3)
		r.header.Set(wire.HeaderDeliveries, "1")
		return r
	})
	if err != nil {
		return err
	}
	a, err := n.answer(ctx, r, 0)
	if err != nil {
		return err
	}
	f := a.failure()
	if f == nil || f.Code != wire.CodeDeliveries || !f.Retry || a.final() != 0 {
		return differs("a failure too_many_deliveries (retry) with Tranche-Final: 0, at the second delivery of a request "+
			"with Tranche-Deliveries: 1", "%s", a)
	}
	return n.expectSettled(ctx, r, ackDone)
}

// givenBack fetches a request before the service can, and gives it back, so that the service gets its second delivery.
// The server hands requests out to those who wait in turn. So of some requests one comes here; the others are answered.
func (n *node) givenBack(ctx context.Context, fresh func() *request) (*request, error) {
	inbox := n.nc.NewInbox()
	stolen, err := n.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("fetch a request: %w", err)
	}
	defer func() { _ = stolen.Unsubscribe() }()
	if err := n.pull(inbox); err != nil {
		return nil, err
	}
	for range thefts {
		r := fresh()
		msg, err := n.steal(ctx, r, stolen)
		if err != nil {
			return nil, err
		}
		if msg == nil {
			continue
		}
		// Before the request goes back, so that the pulls which are left do not get it.
		if err := stolen.Unsubscribe(); err != nil {
			return nil, fmt.Errorf("fetch a request: %w", err)
		}
		if err := msg.Respond([]byte(ackBack)); err != nil {
			return nil, fmt.Errorf("give a request back: %w", err)
		}
		return r, n.forget(ctx, r)
	}
	return nil, fmt.Errorf("none of %d requests could be fetched beside the service", thefts)
}

// pull waits in many places for a request.
func (n *node) pull(inbox string) error {
	want, err := json.Marshal(map[string]any{"batch": 1, "expires": checkTimeout / time.Nanosecond})
	if err != nil {
		return fmt.Errorf("fetch a request: %w", err)
	}
	subject := fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", wire.StreamWork, n.config.Endpoint)
	for range thiefPulls {
		if err := n.nc.PublishRequest(subject, inbox, want); err != nil {
			return fmt.Errorf("fetch a request: %w", err)
		}
	}
	return n.nc.Flush()
}

// steal sends a request and returns its delivery, or nil when the service got it, once it has answered.
func (n *node) steal(ctx context.Context, r *request, stolen *nats.Subscription) (*nats.Msg, error) {
	if err := n.ask(ctx, r); err != nil {
		return nil, err
	}
	var msg *nats.Msg
	err := n.poll(ctx, patience, func() (bool, error) {
		next, err := stolen.NextMsg(time.Millisecond)
		if err == nil && next.Reply != "" { // not a status
			msg = next
			return true, nil
		}
		return n.now(r).final() >= 0, nil
	}, "a request answered", "it was not")
	return msg, err
}

// forget drops the acknowledgement that the suite itself sent for a request.
func (n *node) forget(ctx context.Context, r *request) error {
	if _, err := n.settled(ctx, r); err != nil {
		return err
	}
	n.journal.mu.Lock()
	defer n.journal.mu.Unlock()
	for i := range n.journal.acks {
		if ack := &n.journal.acks[i]; ack.sequence == r.sequence && ack.kind == ackBack {
			ack.sequence = 0
			return nil
		}
	}
	return nil
}
