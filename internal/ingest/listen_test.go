package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// listen has the producers listen, and returns a connection of someone else.
func (b *bench) listen() *nats.Conn {
	b.Helper()
	server := testenv.NATS(b.T)
	listener := testenv.Must(b.it.Listen(testenv.Conn(b.T, server)))(b)
	b.Cleanup(func() { testenv.NoError(b, listener.Close(context.Background())) })
	return testenv.Conn(b.T, server)
}

func TestProducersOverNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nc := b.listen() // the first tries may find no one
	p := testenv.Must(endpoints.NewProducer(nc, "c"))(t)
	var adding sync.WaitGroup
	for i := range 50 {
		adding.Go(func() {
			for range 2 {
				done, err := p.Add(t.Context(), wire.Operation{ID: fmt.Sprint(i), Key: "k", Payload: map[string]int{"n": i}})
				if err != nil || done.Added+done.Duplicates != 1 {
					t.Errorf("add %d: %+v, %v", i, done, err)
				}
			}
		})
	}
	adding.Wait()
	testenv.Same(t, b.keys("c")["k"], 50, "stored")
	// More than a message holds, without ids.
	many := make([]wire.Operation, 300)
	for i := range many {
		many[i] = wire.Operation{Key: "big", Payload: strings.Repeat("x", 10_000)}
	}
	// One whose answer comes late is sent again.
	done := testenv.Must(p.Add(t.Context(), many...))(t)
	testenv.Same(t, done.Added+done.Duplicates, len(many), "several messages")
	testenv.Same(t, testenv.Must(p.Add(t.Context()))(t).Added, 0, "nothing")
	testenv.Same(t, b.keys("c")["big"], len(many), "stored")
}

func TestProducersAreToldWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nc := b.listen()
	ok := testenv.Must(endpoints.NewProducer(nc, "c"))(t)
	testenv.Must(ok.Add(t.Context(), wire.Operation{Key: "k"}))(t) // from now on someone listens
	refused := func(err error, code wire.CollectCode, text string) {
		t.Helper()
		said, ok := errors.AsType[*wire.CollectError](err)
		if !ok || said.Code != code || !strings.Contains(said.Error(), text) {
			t.Errorf("got %v; want %s …%s…", err, code, text)
		}
	}
	_, err := ok.Add(t.Context(), wire.Operation{ID: "1", Key: "k"}, wire.Operation{})
	refused(err, wire.CollectInvalid, "operation 2: key: it is missing")
	_, err = ok.Add(t.Context(), wire.Operation{Key: "k", Payload: strings.Repeat("x", 2<<20)})
	refused(err, wire.CollectTooLarge, "takes at most")
	_, err = ok.Add(t.Context(), wire.Operation{Key: "k", Payload: func() {}})
	testenv.Fails(t, err, "a payload that is not JSON was added")
	other := testenv.Must(endpoints.NewProducer(nc, "nothing"))(t)
	_, err = other.Add(t.Context(), wire.Operation{Key: "k"})
	refused(err, wire.CollectUnknown, "there is no such collector")
	_, err = endpoints.NewProducer(nc, "a.b")
	testenv.Fails(t, err, "a.b is taken for the name of a collector")
	for body, want := range map[string]string{
		"":                        `"bad_operation","message":"there is no operation`,
		"garbage":                 `this is not JSON`,
		`{"ops":[{}]}`:            `operation 1 (line 1): payload: it is missing`,
		`{"key":"k","payload":1}`: `{"added":1,"duplicates":0}`,
	} {
		answer := testenv.Must(nc.Request(wire.CollectSubject("c"), []byte(body), limit))(t)
		testenv.Has(t, string(answer.Data), want, "%q", body)
	}
	// One that is not a request is not added, and harms no one.
	testenv.NoError(t, nc.Publish(wire.CollectSubject("c"), []byte(`{"key":"lost","payload":1}`)))
	wrong := nats.NewMsg(wire.CollectSubject("c"))
	wrong.Header.Set(wire.HeaderVersion, "2")
	answer := testenv.Must(nc.RequestMsg(wrong, limit))(t)
	testenv.Has(t, string(answer.Data), "speaks 1", "another version is answered %v", answer)
	if keys := b.keys("c"); keys["lost"] != 0 || keys["k"] != 2 {
		t.Errorf("stored: %v", keys)
	}
}

// No service listens: the producer continues until its time ends, and says so.
func TestProducersWaitForANode(t *testing.T) {
	t.Parallel()
	nc := testenv.Conn(t, testenv.NATS(t))
	p := testenv.Must(endpoints.NewProducer(nc, "c"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	_, err := p.Add(ctx, wire.Operation{Key: "k"})
	var unstored *wire.UnstoredError
	if !errors.As(err, &unstored) || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "no node listens for tranche.collect.c") {
		t.Errorf("got %v", err)
	}
}

// The time of an add is over in the middle of a try: what is told is why the try before it failed.
func TestProducersAreToldTheLastReason(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var tries atomic.Int64
	node, err := testenv.Conn(t, server).Subscribe(wire.CollectSubject("c"), func(msg *nats.Msg) {
		if tries.Add(1) > 1 {
			cancel() // in the middle of the second
			return
		}
		refusal := `{"error":{"code":"unavailable","message":"PostgreSQL is unavailable"}}`
		testenv.Same(t, msg.Respond([]byte(refusal)), nil, "the answer")
	})
	testenv.NoError(t, err)
	p := testenv.Must(endpoints.NewProducer(testenv.Conn(t, server), "c"))(t)
	_, err = p.Add(ctx, wire.Operation{Key: "k"})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "PostgreSQL is unavailable") {
		t.Errorf("got %v", err)
	}
	testenv.NoError(t, node.Unsubscribe())
}
