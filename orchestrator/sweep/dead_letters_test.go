package sweep_test

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// dead is a dead letter of a request of one item, as a service publishes it.
func dead(t *testing.T, request uuid.UUID) *nats.Msg {
	t.Helper()
	msg := nested(t, wire.Meta{Run: uuid.New(), Slice: request, Mode: wire.ModeSingle, Origin: "edge"}, "")
	msg.Subject = wire.DeadSubject("accounts")
	msg.Header.Set(wire.HeaderMsgID, wire.DeadMsgID(msg.Header))
	msg.Header.Set(wire.HeaderDeadCause, wire.CodePanic)
	msg.Header.Set(wire.HeaderDeadMessage, "the handler panicked")
	msg.Header.Set(wire.HeaderDeadDeliveries, "5")
	msg.Header.Set(wire.HeaderDeadService, "accounts@1.2.3 a")
	msg.Header.Set(wire.HeaderDeadAt, "2026-01-02T03:04:05Z")
	return msg
}

func (b *bundle) publish(t *testing.T, msgs ...*nats.Msg) {
	t.Helper()
	js := b.JS(t)
	for _, msg := range msgs {
		testenv.Must(js.PublishMsg(t.Context(), msg))(t)
	}
}

// Whatever lies in the stream of dead letters is taken in once, and the stream runs empty.
func TestDeadLettersAreCollected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	good := dead(t, uuid.New())
	again := dead(t, uuid.New())
	again.Header = maps.Clone(good.Header)
	again.Header.Set(wire.HeaderRequeued, "1") // the same letter, after the window in which JetStream knows its id
	b.publish(t, good)
	b.Buried(t, 1)
	again.Header.Del(wire.HeaderMsgID)
	garbage := &nats.Msg{Subject: wire.DeadSubject("accounts"), Data: []byte{0xff, 0}}
	nameless := &nats.Msg{Subject: wire.DeadSubject("no$name"), Data: []byte("x"),
		Header: nats.Header{wire.HeaderDeadAt: {"-1"}, wire.HeaderDeadDeliveries: {"x"}}}
	b.publish(t, again, garbage, nameless)
	b.drained(t, wire.StreamDead)
	causes := map[string]int{}
	for _, l := range b.Buried(t, 4) {
		causes[l.Cause]++
		if l.Cause == wire.CodePanic && l.Requeued == 0 {
			full, err := deadletter.New(b.Store).DeadLetter(t.Context(), l.ID.String())
			if err != nil || full.Endpoint != "accounts" || full.Mode != "single" || full.Deliveries != 5 ||
				full.Service != "accounts@1.2.3 a" || full.Origin != "edge" || full.Items != 1 || full.At.Year() != 2026 ||
				string(full.Body) != string(good.Data) || full.State != deadletter.LetterWaiting {
				t.Errorf("the letter is %+v, %v", full, err)
			}
		}
	}
	if causes[wire.CodePanic] != 2 || causes["unreadable"] != 1 || len(causes) != 3 {
		t.Errorf("the causes are %v", causes)
	}
}

// A letter that is requeued is sent as it came, and once, although the node that did so died before it could send it
// and two others find it.
func TestRequeueSurvivesACrash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	slice := uuid.New()
	b.publish(t, dead(t, slice))
	letter := b.Buried(t, 1)[0]
	sel := deadletter.DeadSelection{Refs: []string{letter.ID.String()}}
	if out, err := deadletter.New(b.Store).Requeue(t.Context(), sel, "ann"); err != nil || out.Requeued != 1 { // and dies
		t.Fatalf("requeued %+v, %v", out, err)
	}
	msg := b.take(t, "accounts")
	h := msg.Headers()
	if h.Get(wire.HeaderRequeued) != "1" || h.Get(wire.HeaderSlice) != slice.String() ||
		h.Get(wire.HeaderMode) != "single" || h.Get(wire.HeaderDeadCause) != "" ||
		h.Get(wire.HeaderDeadAt) != "" || h.Get(wire.HeaderMsgID) == slice.String() {
		t.Errorf("the request has the headers %v", h)
	}
	testenv.Same(t, wire.CountItems(h, msg.Data(), wire.Limits{}), 1, "the request is %s", msg.Data())
	if n := b.lying(t, wire.StreamWork, wire.WorkSubject("accounts")); n != 1 { // it is not acknowledged
		t.Errorf("%d requests were sent; want one", n)
	}
}

// A letter whose endpoint cannot be sent to waits, and holds up no other.
func TestRequeueToAnEndpointInTheWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	js := b.JS(t)
	const obstacle = "somebody"
	testenv.Must(js.CreateConsumer(t.Context(), wire.StreamWork, jetstream.ConsumerConfig{Durable: obstacle,
		FilterSubject: wire.WorkSubject("blocked"), AckPolicy: jetstream.AckExplicitPolicy}))(t)
	first := dead(t, uuid.New())
	first.Subject = wire.DeadSubject("blocked")
	b.publish(t, first)
	b.Buried(t, 1)
	b.publish(t, dead(t, uuid.New()))
	b.Buried(t, 2)
	out := testenv.Must(b.Node.DeadLetters().Requeue(t.Context(), deadletter.DeadSelection{All: true}, "ann"))(t)
	testenv.MustSame(t, out.Requeued, 2, "requeued %+v", out)
	b.take(t, "accounts")
	testenv.NoError(t, js.DeleteConsumer(t.Context(), wire.StreamWork, obstacle))
	nodetest.Until(t, "the obstacle's letter is sent", func() bool {
		left, err := deadletter.New(b.Store).UnsentLetters(t.Context(), 10)
		return err == nil && len(left) == 0
	})
	b.take(t, "blocked")
}

// Dead letters that come while PostgreSQL is unavailable wait in their stream.
func TestDeadLettersWaitForPostgreSQL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(t, `ALTER TABLE dead_letter RENAME TO away`)
	tried := testenv.Must(b.NC.SubscribeSync("$JS.ACK." + wire.StreamDead + ".>"))(t)
	b.publish(t, dead(t, uuid.New()))
	testenv.Must(tried.NextMsg(nodetest.Stuck))(t) // it is given back
	b.Exec(t, `ALTER TABLE away RENAME TO dead_letter`)
	watch := testenv.NewWatch(t)
	b.Buried(t, 1)
	b.drained(t, wire.StreamDead)
	if took := watch.Ran(); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// What dies every time comes back as a letter every time, until it takes force to send it again: the count goes with
// the request, and force counts on.
func TestRequeueLoopsOfAServiceAreStopped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var runs atomic.Int64
	b.Serve(t, "accounts", func(context.Context, *nodetest.Chunk) error {
		runs.Add(1)
		panic("always")
	})
	meta := wire.Meta{Run: uuid.New(), Slice: uuid.New(), Mode: wire.ModeSingle, Deliveries: 1}
	b.ask(t, nested(t, meta, "tranche.call.edge.token.accounts"))
	for round := range deadletter.MaxRequeues + 2 {
		letter := b.Buried(t, round+1)[0]
		if letter.Requeued != round || letter.Cause != wire.CodePanic || letter.State != deadletter.LetterWaiting {
			t.Fatalf("in round %d the letter is %+v", round, letter)
		}
		sel := deadletter.DeadSelection{All: true}
		out, err := b.Node.DeadLetters().Requeue(t.Context(), sel, "ann")
		if round >= deadletter.MaxRequeues {
			if err != nil || out.Requeued != 0 || out.RefusedTotal != 1 {
				t.Fatalf("round %d: %+v, %v", round, out, err)
			}
			sel.Force = true
			out, err = b.Node.DeadLetters().Requeue(t.Context(), sel, "ann")
		}
		if err != nil || out.Requeued != 1 {
			t.Fatalf("round %d: %+v, %v", round, out, err)
		}
	}
	b.Buried(t, deadletter.MaxRequeues+3)
	testenv.Same(t, runs.Load(), deadletter.MaxRequeues+3, "runs of the handler")
}
