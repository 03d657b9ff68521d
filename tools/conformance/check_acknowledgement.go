package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/embedded"
)

// withheld is how long the reply stream is kept full.
const withheld = 600 * time.Millisecond

func checkAcknowledged(ctx context.Context, n *node) {
	r := n.sample(20)
	n.answered(ctx, r)
	n.expectSettled(ctx, r, ackDone)
}

func checkStoredFirst(ctx context.Context, n *node) {
	makeRoom := n.fillReplies(ctx)
	r := n.sample(5)
	var early acknowledgement
	err := try(func() { early = n.unanswerable(ctx, r) })
	stop(errors.Join(err, makeRoom()))
	if early.kind == ackDone || early.kind == ackRemove {
		fail("no acknowledgement while the reply stream refuses the reply", "%s", early.text)
	}
	if early.kind == ackBack && early.text == ackBack {
		fail("a delay with -NAK", "%s", early.text)
	}
	subject := wire.ReplySubject(n.config.Endpoint)
	n.poll(ctx, 2*patience, func() bool { return n.stored(ctx, wire.StreamReply, subject, r) },
		"the reply once the stream has room", "none")
	if early.kind != ackBack { // otherwise its second delivery is answered normally
		n.expectSettled(ctx, r, ackDone)
	}
}

// unanswerable sends a request while no reply can be stored, and returns its acknowledgement, if it got one.
func (n *node) unanswerable(ctx context.Context, r *request) (early acknowledgement) {
	n.ask(ctx, r)
	err := n.within(ctx, patience, func() bool {
		_, settled := n.journal.settled(r.sequence)
		return settled || len(n.journal.of(r.slice())) > 0
	})
	if err != nil {
		fail("an attempt to reply", "nothing in %s", patience)
	}
	// Nothing should arrive.
	_ = n.within(ctx, withheld, func() (ok bool) {
		early, ok = n.journal.settled(r.sequence)
		return ok
	})
	return early
}

func checkBadBody(ctx context.Context, n *node) {
	for _, bad := range []struct {
		what  string
		spoil func(*request)
	}{
		{"JSON cut short", func(r *request) { r.body = r.body[:len(r.body)-3] }},
		{"nothing", func(r *request) { r.body = nil }},
		{"no items", func(r *request) { r.body = []byte(`{"items":[]}`) }},
		{"an item without i", func(r *request) { r.body = []byte(`{"items":[{"k":"a","d":1}]}`) }},
		{"an unknown encoding", func(r *request) { r.header.Set(wire.HeaderEncoding, "gzip") }},
		{"zstd that is none", func(r *request) { r.header.Set(wire.HeaderEncoding, "zstd") }},
	} {
		r := n.sample(2)
		bad.spoil(r)
		err := try(func() { n.refused(ctx, r) })
		if m, ok := errors.AsType[*mismatch](err); ok {
			m.expected += ", for a body with " + bad.what
		}
		stop(err)
	}
}

// refused sends a request, which must be answered as unreadable and removed.
func (n *node) refused(ctx context.Context, r *request) {
	const expected = "a failure bad_request that is not retryable, with Tranche-Final: 0"
	a := n.answered(ctx, r)
	f := a.failure()
	inBody := len(a.messages) > 0 && len(a.messages[0].data) > 0 // where it can say that it is permanent
	if f == nil || f.Code != wire.CodeBadRequest || a.final() != 0 || f.Retry && inBody {
		fail(expected, "%s", a)
	}
	n.expectSettled(ctx, r, ackRemove)
}

func checkBadHeaders(ctx context.Context, n *node) {
	for _, bad := range [][2]string{
		{wire.HeaderSlice, ""}, {wire.HeaderSlice, "17"}, {wire.HeaderRun, "not-a-uuid"},
		{wire.HeaderStep, "first"}, {wire.HeaderAttempt, "0"}, {wire.HeaderGeneration, "-1"},
		{wire.HeaderMode, "neither"}, {wire.HeaderVersion, ""},
	} {
		r := n.sample(1)
		if r.header.Set(bad[0], bad[1]); bad[1] == "" {
			r.header.Del(bad[0])
		}
		n.ask(ctx, r)
		ack := n.settled(ctx, r)
		if ack.kind != ackRemove {
			fail(fmt.Sprintf("+TERM for a request with %s %q", bad[0], bad[1]), "%s", ack.text)
		}
	}
}

func checkVersion(ctx context.Context, n *node) {
	const expected = `-NAK {"delay":10000000000}, which gives other instances the time, and no reply`
	r := n.sample(1)
	r.header.Set(wire.HeaderVersion, "2")
	r.body = []byte("who knows what version 2 looks like")
	n.ask(ctx, r)
	ack := n.settled(ctx, r)
	var back struct{ Delay time.Duration }
	_ = json.Unmarshal([]byte(strings.TrimPrefix(ack.text, ackBack)), &back) // other text has no delay
	if ack.kind != ackBack || back.Delay < time.Second {
		fail(expected, "%s", ack.text)
	}
	if a := n.now(r); len(a.messages) > 0 {
		fail(expected, "%s", a)
	}
}

func (n *node) now(r *request) *answer {
	n.journal.mu.Lock()
	defer n.journal.mu.Unlock()
	return &answer{n.journal.of(r.slice())}
}

const (
	thiefPulls = 32 // the service's own pulls get turns between them
	thefts     = 20
)

func checkRedelivered(ctx context.Context, n *node) {
	r := n.givenBack(ctx, func() *request { return n.sample(3) })
	n.awaitWhole(ctx, r)
}

func checkDeliveries(ctx context.Context, n *node) {
	r := n.givenBack(ctx, func() *request {
		r := n.sample(3)
		r.header.Set(wire.HeaderDeliveries, "1")
		return r
	})
	a := must(n.answer(ctx, r, 0))
	f := a.failure()
	if f == nil || f.Code != wire.CodeDeliveries || !f.Retry || a.final() != 0 {
		fail("a failure too_many_deliveries (retry) with Tranche-Final: 0, at the second delivery of a request "+
			"with Tranche-Deliveries: 1", "%s", a)
	}
	n.expectSettled(ctx, r, ackDone)
}

// givenBack fetches a request before the service does and returns it, so that the service gets the second delivery.
// The server serves pulls in turn, so several requests may be needed; the rest are answered.
func (n *node) givenBack(ctx context.Context, fresh func() *request) *request {
	inbox := n.nc.NewInbox()
	stolen := must(n.nc.SubscribeSync(inbox))
	defer func() { _ = stolen.Unsubscribe() }()
	want := must(json.Marshal(map[string]any{"batch": 1, "expires": checkTimeout / time.Nanosecond}))
	subject := fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", wire.StreamWork, n.config.Endpoint)
	for range thiefPulls {
		stop(n.nc.PublishRequest(subject, inbox, want))
	}
	stop(n.nc.Flush())
	for range thefts {
		r := fresh()
		msg := n.steal(ctx, r, stolen)
		if msg == nil {
			continue
		}
		// Before the request is returned, so that the remaining pulls do not get it.
		stop(stolen.Unsubscribe())
		stop(msg.Respond([]byte(ackBack)))
		n.forget(ctx, r)
		return r
	}
	panic(ended{fmt.Errorf("none of %d requests could be fetched before the service did", thefts)})
}

// steal sends a request and returns its delivery, or nil if the service answered it.
func (n *node) steal(ctx context.Context, r *request, stolen *nats.Subscription) (msg *nats.Msg) {
	n.ask(ctx, r)
	n.poll(ctx, patience, func() bool {
		next, err := stolen.NextMsg(time.Millisecond)
		if err == nil && next.Reply != "" { // not a status
			msg = next
			return true
		}
		return n.now(r).final() >= 0
	}, "a request answered", "it was not")
	return msg
}

func (n *node) forget(ctx context.Context, r *request) {
	n.settled(ctx, r)
	n.journal.mu.Lock()
	defer n.journal.mu.Unlock()
	for i := range n.journal.acks {
		if ack := &n.journal.acks[i]; ack.sequence == r.sequence && ack.kind == ackBack {
			ack.sequence = 0
			return
		}
	}
}

const (
	// lateRequests suffice for many pulls of any service.
	lateRequests = 100
	// lateBytes is the minimum size of each, so that services that limit their pulls by bytes reach that limit.
	lateBytes = 64 << 10
	// lateAckWait is long enough that lost messages are not redelivered during the check.
	lateAckWait = time.Minute
	replicas    = 3
	// electionPause is the pause between attempts to create streams on newly clustered servers.
	electionPause = 100 * time.Millisecond
)

// checkLate restarts the service on three servers. There, a pull limited in bytes ends (409) before its messages
// arrive, which wait for quorum. A service that does not limit its pulls passes.
func checkLate(ctx context.Context, n *node) {
	dir := must(os.MkdirTemp("", "tranche-conformance-"))
	defer func() { stop(os.RemoveAll(dir)) }()
	cluster := must(embedded.StartNATSCluster(ctx, dir))
	defer cluster.Stop()
	url := cluster.URLs()[0]
	other := &node{config: n.config, private: true, contract: n.contract, journal: newJournal()}
	disconnect := must(other.connect(ctx, url))
	defer func() { _ = disconnect() }()
	other.makeReplicated(ctx)
	requests := other.askMany(ctx)
	other.service = must(n.config.service(url))
	defer other.service.Stop(stopTimeout)
	other.allAtOnce(ctx, requests)
}

// makeReplicated creates the streams and the consumer once the servers have elected leaders.
func (n *node) makeReplicated(ctx context.Context) {
	for {
		err := n.makeStreamsWith(ctx, stream.Config{Memory: true, Replicas: replicas}, lateAckWait)
		if err == nil || ctx.Err() != nil {
			stop(err)
			return
		}
		_ = backoff.Sleep(ctx, electionPause)
	}
}

// askMany publishes requests before the service starts, so that each of its pulls finds enough.
func (n *node) askMany(ctx context.Context) (requests []*request) {
	for range lateRequests {
		r := n.sample(1)
		r.body = append(r.body, bytes.Repeat([]byte{' '}, lateBytes)...)
		n.ask(ctx, r)
		requests = append(requests, r)
	}
	return requests
}

// allAtOnce waits until all requests are answered, as long as there is progress, and expects one delivery of each.
func (n *node) allAtOnce(ctx context.Context, requests []*request) {
	const expected = "all requests answered at their first delivery, with three servers"
	answered := func() (count int) {
		for _, r := range requests {
			if len(n.journal.of(r.slice())) > 0 {
				count++
			}
		}
		return count
	}
	for count := 0; count < len(requests); {
		err := n.within(ctx, startTimeout, func() bool { return answered() > count })
		n.journal.look(func() bool { count = answered(); return true })
		if err != nil {
			fail(expected, "%d of %d answered, and no other in %s", count, len(requests), startTimeout)
		}
	}
	info := must(n.consumer(ctx))
	if again := int(info.Delivered.Consumer) - len(requests); again > 0 {
		fail(expected, "%d delivered again", again)
	}
}
