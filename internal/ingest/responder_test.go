package ingest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// answering is a responder whose requests end when they are let go.
type answering struct {
	*testing.T
	server *embedded.NATS
	asking *nats.Conn
	it     *ingest.Responder

	began chan string   // requests at work
	let   chan struct{} // each lets one go
	ended atomic.Int64
}

func answer(t *testing.T, requests int, bytes int64) *answering {
	t.Helper()
	b := &answering{T: t, server: testenv.OwnNATS(t, embedded.NATSConfig{}), began: make(chan string, 100),
		let: make(chan struct{})}
	b.asking = testenv.Conn(t, b.server)
	node := testenv.Conn(t, b.server)
	var err error
	b.it, err = ingest.NewResponder(node, ingest.ResponderConfig{
		Subject: "ask.*", Queue: "nodes", Timeout: limit, MaxRequests: requests, MaxBytes: bytes,
		Answer: func(ctx context.Context, msg *nats.Msg) {
			defer b.ended.Add(1)
			b.began <- msg.Subject
			select {
			case <-b.let:
				b.respond(msg, "done")
			case <-ctx.Done():
				b.respond(msg, "interrupted")
			}
		},
		Refuse: func(msg *nats.Msg) { b.respond(msg, "refused") },
	})
	if err == nil {
		err = node.FlushTimeout(limit) // Listen waits for the server for a moment only
	}
	testenv.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = b.it.Close(ctx) // many tests have closed it
	})
	return b
}

func (b *answering) respond(msg *nats.Msg, text string) {
	if err := msg.Respond([]byte(text)); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		b.Error(err)
	}
}

// ask sends a request of some bytes, and returns where its answer comes.
func (b *answering) ask(size int) <-chan string {
	answer := make(chan string, 1)
	go func() {
		msg, err := b.asking.Request("ask.x", []byte(strings.Repeat("x", size)), limit)
		if err != nil {
			answer <- err.Error()
			return
		}
		answer <- string(msg.Data)
	}()
	return answer
}

func (b *answering) hear(answer <-chan string, want string) {
	b.Helper()
	select {
	case got := <-answer:
		testenv.Same(b, got, want, "the answer")
	case <-time.After(limit):
		b.Fatalf("no answer; want %q", want)
	}
}

// working asks, and returns when the request is at work.
func (b *answering) working(size int) <-chan string {
	b.Helper()
	answer := b.ask(size)
	select {
	case <-b.began:
	case got := <-answer:
		b.Fatalf("the answer is %q; it was to be worked on", got)
	case <-time.After(limit):
		b.Fatal("no one works on it")
	}
	return answer
}

func TestRequestsAreBoundedByNumber(t *testing.T) {
	t.Parallel()
	b := answer(t, 2, 1<<20)
	one, two := b.working(1), b.working(1)
	b.hear(b.ask(1), "refused")
	b.let <- struct{}{}
	b.let <- struct{}{}
	b.hear(one, "done")
	b.hear(two, "done")
}

// A request that is alone is taken, however large it is; beside others only what memory is there for.
func TestRequestsAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	b := answer(t, 10, 1000)
	large := b.working(3000)
	b.hear(b.ask(1), "refused")
	b.let <- struct{}{}
	b.hear(large, "done")
	ingest.Idle(b.it) // it has left
	half, other := b.working(500), b.working(500)
	b.hear(b.ask(1), "refused")
	b.let <- struct{}{}
	b.let <- struct{}{}
	b.hear(half, "done")
	b.hear(other, "done")
}

func TestCloseWaitsForWhatWasTaken(t *testing.T) {
	t.Parallel()
	b := answer(t, 10, 1000)
	answer := b.working(1)
	closed := make(chan error, 1)
	go func() { closed <- b.it.Close(t.Context()) }()
	b.let <- struct{}{}
	testenv.NoError(t, <-closed)
	testenv.Same(t, b.ended.Load(), 1, "requests have ended once it is closed")
	b.hear(answer, "done")
}

func TestCloseBreaksOffWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	b := answer(t, 10, 1000)
	answer := b.working(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := b.it.Close(ctx)
	if err == nil || !strings.Contains(err.Error(), "1 requests to ask.* were interrupted") || b.ended.Load() != 1 {
		t.Errorf("it is closed: %v; %d requests have ended", err, b.ended.Load())
	}
	b.hear(answer, "interrupted")
}

// Without the server no one says when everything has come.
func TestCloseWithoutServer(t *testing.T) {
	t.Parallel()
	b := answer(t, 10, 1000)
	testenv.NoError(t, b.server.Stop(t.Context()))
	begin := time.Now()
	testenv.NoError(t, b.it.Close(t.Context()))
	if took := time.Since(begin); took > limit {
		t.Errorf("it took %s", took)
	}
}

// A request is not taken that would be answered elsewhere than in an inbox, or that a stream has given out.
func TestOnlyInboxesAreAnswered(t *testing.T) {
	t.Parallel()
	b := answer(t, 10, 1<<20)
	heard := testenv.Must(b.asking.SubscribeSync("elsewhere"))(t)
	for _, msg := range []*nats.Msg{
		{Subject: "ask.reply", Reply: "elsewhere"},
		{Subject: "ask.stream", Reply: b.asking.NewInbox(), Header: nats.Header{"Nats-Stream": {"TRANCHE_FLOW"}}},
		{Subject: "ask.last", Reply: b.asking.NewInbox()},
	} {
		testenv.NoError(t, b.asking.PublishMsg(msg))
	}
	select {
	case subject := <-b.began:
		testenv.Same(t, subject, "ask.last", "what is worked on")
	case <-time.After(limit):
		t.Fatal("nothing is worked on")
	}
	if n, _, err := heard.Pending(); err != nil || n > 0 {
		t.Errorf("%d answers went elsewhere, %v", n, err)
	}
	b.let <- struct{}{}
}
