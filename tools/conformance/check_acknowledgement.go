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

func checkAcknowledged(ctx context.Context, n *node) error {
	r := n.sample(20)
	if _, err := n.answered(ctx, r); err != nil {
		return err
	}
	return n.expectSettled(ctx, r, ackDone)
}

func checkStoredFirst(ctx context.Context, n *node) (err error) {
	makeRoom := must(n.fillReplies(ctx))
	r := n.sample(5)
	early, err := n.unanswerable(ctx, r)
	if failed := makeRoom(); err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	if early.kind == ackDone || early.kind == ackRemove {
		return differs("no acknowledgement while the reply stream refuses the reply", "%s", early.text)
	}
	if early.kind == ackBack && early.text == ackBack {
		return differs("a delay with -NAK", "%s", early.text)
	}
	subject := wire.ReplySubject(n.config.Endpoint)
	if err := n.poll(ctx, 2*patience, func() (bool, error) {
		return n.stored(ctx, wire.StreamReply, subject, r)
	}, "the reply once the stream has room", "none"); err != nil {
		return err
	}
	if early.kind == ackBack {
		return nil // its second delivery is answered normally
	}
	return n.expectSettled(ctx, r, ackDone)
}

// unanswerable sends a request while no reply can be stored, and returns its acknowledgement, if it got one.
func (n *node) unanswerable(ctx context.Context, r *request) (early acknowledgement, err error) {
	if err := n.ask(ctx, r); err != nil {
		return early, err
	}
	err = n.within(ctx, patience, func() bool {
		_, settled := n.journal.settled(r.sequence)
		return settled || len(n.journal.of(r.slice())) > 0
	})
	if err != nil {
		return early, differs("an attempt to reply", "nothing in %s", patience)
	}
	// Nothing should arrive.
	_ = n.within(ctx, withheld, func() (ok bool) {
		early, ok = n.journal.settled(r.sequence)
		return ok
	})
	return early, nil
}

func checkBadBody(ctx context.Context, n *node) error {
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
		stop(about("a body with "+bad.what, n.refused(ctx, r)))
	}
	return nil
}

func about(what string, err error) error {
	if m, ok := errors.AsType[*mismatch](err); ok {
		return &mismatch{m.expected + ", for " + what, m.got}
	}
	return err
}

// refused sends a request and returns an error unless it is answered as unreadable and removed.
func (n *node) refused(ctx context.Context, r *request) error {
	const expected = "a failure bad_request that is not retryable, with Tranche-Final: 0"
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	f := a.failure()
	if f == nil || f.Code != wire.CodeBadRequest || a.final() != 0 || f.Retry && a.inBody() {
		return differs(expected, "%s", a)
	}
	return n.expectSettled(ctx, r, ackRemove)
}

// inBody reports whether the failure is in a body, which can say that it is permanent.
func (a *answer) inBody() bool { return len(a.messages) > 0 && len(a.messages[0].data) > 0 }

func checkBadHeaders(ctx context.Context, n *node) error {
	for _, bad := range [][2]string{
		{wire.HeaderSlice, ""}, {wire.HeaderSlice, "17"}, {wire.HeaderRun, "not-a-uuid"},
		{wire.HeaderStep, "first"}, {wire.HeaderAttempt, "0"}, {wire.HeaderGeneration, "-1"},
		{wire.HeaderMode, "neither"}, {wire.HeaderVersion, ""},
	} {
		r := n.sample(1)
		if r.header.Set(bad[0], bad[1]); bad[1] == "" {
			r.header.Del(bad[0])
		}
		stop(n.ask(ctx, r))
		ack := must(n.settled(ctx, r))
		if ack.kind != ackRemove {
			return differs(fmt.Sprintf("+TERM for a request with %s %q", bad[0], bad[1]), "%s", ack.text)
		}
	}
	return nil
}

func checkVersion(ctx context.Context, n *node) error {
	const expected = `-NAK {"delay":10000000000}, which gives other instances the time, and no reply`
	r := n.sample(1)
	r.header.Set(wire.HeaderVersion, "2")
	r.body = []byte("who knows what version 2 looks like")
	stop(n.ask(ctx, r))
	ack := must(n.settled(ctx, r))
	var back struct{ Delay time.Duration }
	_ = json.Unmarshal([]byte(strings.TrimPrefix(ack.text, ackBack)), &back) // other text has no delay
	if ack.kind != ackBack || back.Delay < time.Second {
		return differs(expected, "%s", ack.text)
	}
	if a := n.now(r); len(a.messages) > 0 {
		return differs(expected, "%s", a)
	}
	return nil
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

func checkRedelivered(ctx context.Context, n *node) error {
	r := must(n.givenBack(ctx, func() *request { return n.sample(3) }))
	return n.awaitWhole(ctx, r)
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
	a := must(n.answer(ctx, r, 0))
	f := a.failure()
	if f == nil || f.Code != wire.CodeDeliveries || !f.Retry || a.final() != 0 {
		return differs("a failure too_many_deliveries (retry) with Tranche-Final: 0, at the second delivery of a request "+
			"with Tranche-Deliveries: 1", "%s", a)
	}
	return n.expectSettled(ctx, r, ackDone)
}

// givenBack fetches a request before the service does and returns it, so that the service gets the second delivery.
// The server serves pulls in turn, so several requests may be needed; the rest are answered.
func (n *node) givenBack(ctx context.Context, fresh func() *request) (*request, error) {
	inbox := n.nc.NewInbox()
	stolen, err := n.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("fetch a request: %w", err)
	}
	defer func() { _ = stolen.Unsubscribe() }()
	stop(n.pull(inbox))
	for range thefts {
		r := fresh()
		msg := must(n.steal(ctx, r, stolen))
		if msg == nil {
			continue
		}
		// Before the request is returned, so that the remaining pulls do not get it.
		if err := stolen.Unsubscribe(); err != nil {
			return nil, fmt.Errorf("fetch a request: %w", err)
		}
		if err := msg.Respond([]byte(ackBack)); err != nil {
			return nil, fmt.Errorf("give a request back: %w", err)
		}
		return r, n.forget(ctx, r)
	}
	return nil, fmt.Errorf("none of %d requests could be fetched before the service did", thefts)
}

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

// steal sends a request and returns its delivery, or nil if the service answered it.
func (n *node) steal(ctx context.Context, r *request, stolen *nats.Subscription) (*nats.Msg, error) {
	stop(n.ask(ctx, r))
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
func checkLate(ctx context.Context, n *node) (err error) {
	dir, err := os.MkdirTemp("", "tranche-conformance-")
	if err != nil {
		return fmt.Errorf("make a directory for NATS: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := embedded.StartNATSCluster(ctx, dir)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	url := cluster.URLs()[0]
	other := &node{config: n.config, private: true, contract: n.contract, journal: newJournal()}
	disconnect, err := other.connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = disconnect() }()
	stop(other.makeReplicated(ctx))
	requests := other.askMany(ctx)
	if other.service, err = n.config.service(url); err != nil {
		return err
	}
	defer other.service.Stop(stopTimeout)
	return other.allAtOnce(ctx, requests)
}

// makeReplicated creates the streams and the consumer once the servers have elected leaders.
func (n *node) makeReplicated(ctx context.Context) error {
	for {
		err := n.makeStreamsWith(ctx, stream.Config{Memory: true, Replicas: replicas}, lateAckWait)
		if err == nil || ctx.Err() != nil {
			return err
		}
		_ = backoff.Sleep(ctx, electionPause)
	}
}

// askMany publishes requests before the service starts, so that each of its pulls finds enough.
func (n *node) askMany(ctx context.Context) (requests []*request) {
	for range lateRequests {
		r := n.sample(1)
		r.body = append(r.body, bytes.Repeat([]byte{' '}, lateBytes)...)
		stop(n.ask(ctx, r))
		requests = append(requests, r)
	}
	return requests
}

// allAtOnce waits until all requests are answered, as long as there is progress, and expects one delivery of each.
func (n *node) allAtOnce(ctx context.Context, requests []*request) error {
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
			return differs(expected, "%d of %d answered, and no other in %s", count, len(requests), startTimeout)
		}
	}
	info := must(n.consumer(ctx))
	if again := int(info.Delivered.Consumer) - len(requests); again > 0 {
		return differs(expected, "%d delivered again", again)
	}
	return nil
}
