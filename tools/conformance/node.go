package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	// patience is how long one thing may take.
	patience = 5 * time.Second
	// impatience is how long a reply or an acknowledgement may take once one has not come: a service that never sends
	// any would take the suite minutes.
	impatience = 3 * time.Second
	// grace is how long a reply is waited for to get longer, when it could be whole or not.
	grace = 400 * time.Millisecond
	// ownAckWait is the AckWait on a server of the suite's own: short, so that signs of life come often.
	ownAckWait = 3 * time.Second
)

// node plays the node's part towards one endpoint.
type node struct {
	config   Config
	nc       *nats.Conn
	js       jetstream.JetStream
	service  service // nil when somebody else runs it
	private  bool    // the server is the suite's own
	contract bool    // the endpoint obeys orders
	ackWait  time.Duration
	journal  *journal
	recorder *recorder     // nil: none
	stopped  bool          // the service has been told to stop
	late     bool          // the service has let a wait run out; the next ones are shorter
	more     time.Duration // than patience, for what a service has much to do for
	retains  bool          // the service keeps parts of replies back until the end
}

// lasting returns a context that ends after some time.
type lasting func(context.Context, time.Duration) (context.Context, context.CancelFunc)

// within returns when done is true, or an error after some time. See [journal.until].
func (n *node) within(ctx context.Context, limit time.Duration, done func() bool) error {
	ctx, cancel := n.config.lasting(ctx, limit)
	defer cancel()
	return n.journal.until(ctx, done)
}

// tap subscribes to all that the service of an endpoint sends, on one channel, so that the order is known.
func tap(nc *nats.Conn, endpoint string, to chan *nats.Msg) error {
	for _, subject := range []string{
		"tranche.reply.>", "tranche.stage." + caller + ".>", "tranche.call." + caller + ".>",
		fmt.Sprintf("$JS.ACK.%s.%s.>", wire.StreamWork, endpoint),
		fmt.Sprintf("$JS.ACK.*.*.%s.%s.>", wire.StreamWork, endpoint),
		fmt.Sprintf("$JS.ACK.%s.%s.>", wire.StreamWork, wire.LaneOf(endpoint)),
		fmt.Sprintf("$JS.ACK.*.*.%s.%s.>", wire.StreamWork, wire.LaneOf(endpoint)),
	} {
		if _, err := nc.ChanSubscribe(subject, to); err != nil {
			return fmt.Errorf("listen to %s: %w", subject, err)
		}
	}
	return nc.Flush()
}

// ask publishes a request.
func (n *node) ask(ctx context.Context, r *request) error {
	return n.askOn(ctx, wire.WorkSubject(n.config.Endpoint), r)
}

func (n *node) askOn(ctx context.Context, subject string, r *request) error {
	msg := &nats.Msg{Subject: subject, Header: r.header, Data: r.body}
	ctx, cancel := n.config.lasting(ctx, patience)
	defer cancel()
	ack, err := n.js.PublishMsg(ctx, msg)
	if err != nil {
		return fmt.Errorf("publish a request: %w", err)
	}
	r.sequence = ack.Sequence
	return nil
}

// answered asks and returns the reply, as whole as it got.
func (n *node) answered(ctx context.Context, r *request) (*answer, error) {
	if err := n.ask(ctx, r); err != nil {
		return nil, err
	}
	return n.answer(ctx, r, 0)
}

// answer waits for the reply to a request, without the first messages of the slice if so many are to be left out.
func (n *node) answer(ctx context.Context, r *request, without int) (*answer, error) {
	limit := n.patience()
	ctx, cancel := n.config.lasting(ctx, limit)
	defer cancel()
	var a *answer
	update := func() bool {
		all := n.journal.of(r.slice())
		a = &answer{all[min(without, len(all)):]}
		return a.final() >= 0 && a.sent() >= a.final()
	}
	// Whole, or as good as that.
	err := n.journal.until(ctx, func() bool {
		return update() || a.final() >= 0 || len(a.slots()) >= len(r.items)
	})
	for err == nil && !n.journal.look(update) {
		had := len(a.messages)
		err = n.within(ctx, grace, func() bool { return update() || len(a.messages) > had })
	}
	if len(a.messages) == 0 {
		n.late = true
		return nil, differs("a reply", "nothing in %s", limit)
	}
	return a, nil
}

func (n *node) patience() time.Duration {
	if n.late {
		return impatience
	}
	return patience + n.more
}

// settled waits for the acknowledgement that lets a request go.
func (n *node) settled(ctx context.Context, r *request) (acknowledgement, error) {
	limit := n.patience()
	var ack acknowledgement
	err := n.within(ctx, limit, func() (ok bool) {
		ack, ok = n.journal.settled(r.sequence)
		return ok
	})
	if err != nil {
		n.late = true
		return ack, differs("an acknowledgement of the request", "none in %s", limit)
	}
	return ack, nil
}

// expectSettled returns an error unless the request is let go by an acknowledgement of the kind, and is gone then.
func (n *node) expectSettled(ctx context.Context, r *request, kind string) error {
	ack, err := n.settled(ctx, r)
	if err != nil {
		return err
	}
	if ack.kind != kind {
		return differs(kind+" for the request", "%s", ack.text)
	}
	return n.poll(ctx, patience, func() (bool, error) {
		there, err := n.waiting(ctx, r)
		return !there, err
	}, "the request gone from the stream after "+kind, "it is still there")
}

// waiting reports whether a request is still in the stream.
func (n *node) waiting(ctx context.Context, r *request) (bool, error) {
	stream, err := n.js.Stream(ctx, wire.StreamWork)
	if err != nil {
		return false, fmt.Errorf("look for a request: %w", err)
	}
	_, err = stream.GetMsg(ctx, r.sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a request: %w", err)
	}
	return true, nil
}

// delivered waits until a request is in the hands of a service.
func (n *node) delivered(ctx context.Context, r *request) error {
	return n.poll(ctx, patience, func() (bool, error) {
		info, err := n.consumer(ctx)
		if err != nil {
			return false, err
		}
		return info.Delivered.Stream >= r.sequence, nil
	}, "the request fetched", "it was not")
}

func (n *node) consumer(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	consumer, err := n.js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(n.config.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("look at the consumer of %s: %w", n.config.Endpoint, err)
	}
	return consumer.CachedInfo(), nil
}

// poll returns when done is true, or a mismatch after the time.
func (n *node) poll(ctx context.Context, within time.Duration, done func() (bool, error), expected, got string) error {
	ctx, cancel := n.config.lasting(ctx, within)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, err := done()
		switch {
		case ok && err == nil:
			return nil
		case ctx.Err() != nil:
			return differs(expected, "%s after %s", got, within)
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}
