package conformance

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

func slowly(d time.Duration) *request { return orders(order{"do": "slow", "ms": d.Milliseconds()}) }

// checkInProgress repeats the check if the whole machine may have stalled.
func checkInProgress(ctx context.Context, n *node) {
	var err error
	for range 3 {
		longest := standstill()
		err = try(func() { n.signsOfLife(ctx) })
		if longest() <= n.ackWait/4 || err == nil {
			break
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < n.ackWait+patience {
			break
		}
	}
	stop(err)
}

// standstill measures this process's longest stall, probably the machine's, until longest is called.
func standstill() (longest func() time.Duration) {
	ended, found := make(chan struct{}), make(chan time.Duration)
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		var most time.Duration
		for last := time.Now(); ; {
			most, last = max(most, time.Since(last)), time.Now()
			select {
			case <-ticker.C:
			case <-ended:
				found <- max(most, time.Since(last))
				return
			}
		}
	}()
	return func() time.Duration {
		close(ended)
		return <-found
	}
}

// signsOfLife sends a request that takes long enough to need heartbeats.
func (n *node) signsOfLife(ctx context.Context) {
	r := slowly(n.ackWait * 3 / 4)
	n.ask(ctx, r)
	err := n.within(ctx, n.ackWait+patience, func() bool {
		a := answer{n.journal.of(r.slice())}
		return a.final() >= 0
	})
	if err != nil {
		fail("a reply", "nothing in %s", n.ackWait+patience)
	}
	if n.journal.count(r.sequence, ackWorking) == 0 {
		fail("+WPI for a request that is worked on, at least every "+(n.ackWait/3).String(), "none in %s",
			n.ackWait*3/4)
	}
}

// checkDeliveredTwice forces a redelivery with an acknowledgement in the service's name.
func checkDeliveredTwice(ctx context.Context, n *node) {
	r := slowly(700 * time.Millisecond)
	n.ask(ctx, r)
	n.delivered(ctx, r)
	info := must(n.consumer(ctx))
	subject := "$JS.ACK." + wire.StreamWork + "." + info.Name + ".1." + strconv.FormatUint(r.sequence, 10) + "." +
		strconv.FormatUint(info.Delivered.Consumer, 10) + "." + strconv.FormatInt(time.Now().UnixNano(), 10) + ".0"
	stop(n.nc.Publish(subject, []byte(ackBack)))
	n.forget(ctx, r)
	n.awaitWhole(ctx, r)
	n.expectSettled(ctx, r, ackDone)
}

// recreateTimeout is how long a service may take to recreate a consumer. Services that leave it to nodes never do.
const recreateTimeout = 3 * time.Second

// checkConsumer deletes the consumer. Nodes update a recreated one, but some settings cannot be changed.
func checkConsumer(ctx context.Context, n *node) {
	stop(n.js.DeleteConsumer(ctx, wire.StreamWork, n.config.Endpoint))
	var made *jetstream.ConsumerInfo
	n.eventually(ctx, recreateTimeout, func() bool {
		made, _ = n.consumer(ctx)
		return made != nil
	})
	err := ctx.Err() // none is created, which is fine
	if made != nil {
		if err = sameSettings(made.Config, n.consumerConfig(stream.AckWait)); err != nil {
			_ = n.js.DeleteConsumer(ctx, wire.StreamWork, n.config.Endpoint) // otherwise it stays
		}
	}
	stop(errors.Join(err, n.makeStreams(ctx)))
}

func sameSettings(got, want jetstream.ConsumerConfig) error {
	say := func(c jetstream.ConsumerConfig) string {
		return fmt.Sprintf("filter %s, %s, AckWait %s, MaxDeliver %d, MaxAckPending %d, MaxWaiting %d", c.FilterSubject,
			c.AckPolicy, c.AckWait, c.MaxDeliver, c.MaxAckPending, c.MaxWaiting)
	}
	if say(got) != say(want) {
		return differs("a consumer with "+say(want), "%s", say(got))
	}
	return nil
}

func checkStreamsRecreated(ctx context.Context, n *node) {
	n.remakeStreams(ctx)
	r := n.sample(3)
	n.ask(ctx, r)
	n.poll(ctx, 2*patience, func() bool { return n.now(r).exactly(r) == nil },
		"a reply to a request in the new stream", "none")
}

// checkStaleAcks recreates the stream while a request is in progress and another takes its sequence.
func checkStaleAcks(ctx context.Context, n *node) {
	n.remakeStreams(ctx) // sequences start at 1
	old := slowly(1500 * time.Millisecond)
	n.ask(ctx, old)
	n.poll(ctx, 2*patience, func() bool { return must(n.consumer(ctx)).Delivered.Stream >= old.sequence },
		"the request fetched from the new stream", "it was not")
	n.remakeStreams(ctx)
	_ = backoff.Sleep(ctx, 250*time.Millisecond) // the service's cached state may be 100 ms old
	made := n.mark()
	r := n.sample(1)
	n.ask(ctx, r)
	n.poll(ctx, 2*patience, func() bool { return n.now(r).exactly(r) == nil && n.now(old).final() >= 0 },
		"replies to the request of the deleted stream and to one of the new stream", "not both")
	_ = backoff.Sleep(ctx, grace) // an acknowledgement would follow the reply
	n.onlyNew(ctx, made)
}

// mark returns the number of acknowledgements so far.
func (n *node) mark() int {
	n.journal.mu.Lock()
	defer n.journal.mu.Unlock()
	return len(n.journal.acks)
}

// onlyNew fails if an acknowledgement since mark is for a request of a deleted stream.
func (n *node) onlyNew(ctx context.Context, mark int) {
	stream := must(n.js.Stream(ctx, wire.StreamWork))
	made := stream.CachedInfo().Created
	n.journal.mu.Lock()
	defer n.journal.mu.Unlock()
	for _, ack := range n.journal.acks[mark:] {
		if ack.stored.Before(made) {
			fail("no acknowledgement of a request whose consumer is gone: it would count for another with the same "+
				"sequence", "%s for sequence %d", ack.text, ack.sequence)
		}
	}
}

// begun waits for the first part of a reply: on a busy machine a request may be delivered long before it starts.
// Services known to hold parts back get a short wait.
func (n *node) begun(ctx context.Context, r *request) {
	n.delivered(ctx, r)
	limit := patience
	if n.retains {
		limit = grace
	}
	_ = n.within(ctx, limit, func() bool { return len(n.journal.of(r.slice())) > 0 })
}

// startedRequest returns a request in progress. If the reply arrived as one message, it tries again.
func (n *node) startedRequest(ctx context.Context) (r *request) {
	for range 2 {
		r = orders(order{"do": "partial"}, order{"do": "slow", "ms": 700})
		n.ask(ctx, r)
		n.begun(ctx, r)
		if n.now(r).final() < 0 {
			break
		}
		n.retains = true
	}
	return r
}

func checkDrain(ctx context.Context, n *node) {
	r := n.startedRequest(ctx)
	n.stopped = true
	n.service.Terminate()
	ending, cancel := n.config.lasting(ctx, stopTimeout)
	defer cancel()
	select {
	case <-n.service.Done():
	case <-ending.Done():
		fail("the service to end on SIGTERM", "still running after %s", stopTimeout)
	}
	if err := n.service.failure(); err != nil {
		fail("the service to end with exit code 0", "%v", err)
	}
	a, err := n.answer(ctx, r, 0)
	if err != nil {
		fail("the request that was begun answered", "no reply, and the service ended")
	}
	stop(a.exactly(r))
	n.expectSettled(ctx, r, ackDone)
}
