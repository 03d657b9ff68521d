package sweep_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// exhaust takes the first message of a consumer and gives it back until the server delivers it no more, as a service
// does that dies of it repeatedly.
func (b *bundle) exhaust(t *testing.T, stream, name string) {
	t.Helper()
	consumer := testenv.Must(b.JS(t).Consumer(t.Context(), stream, name))(t)
	noticed := testenv.Must(b.NC.SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + stream + "." + name))(t)
	var first uint64
	var others []jetstream.Msg
	taking := testenv.Must(consumer.Consume(func(msg jetstream.Msg) {
		at, err := msg.Metadata()
		if first == 0 && err == nil {
			first = at.Sequence.Stream
		}
		if err != nil || at.Sequence.Stream != first {
			others = append(others, msg) // in the hands of another service
		} else if err = msg.Nak(); err != nil {
			t.Error(err)
		}
	}, jetstream.PullMaxMessages(1)))(t)
	testenv.Must(noticed.NextMsg(nodetest.Stuck))(t) // the server was to deliver it again
	testenv.NoError(t, noticed.Unsubscribe())
	taking.Drain()
	<-taking.Closed()
	for _, msg := range others {
		testenv.NoError(t, msg.Nak())
	}
}

// drained waits until a stream is empty.
func (b *bundle) drained(t *testing.T, stream string) {
	t.Helper()
	b.holding(t, stream, 0)
}

// holding waits until there are so many messages in a stream.
func (b *bundle) holding(t *testing.T, stream string, n uint64) (s jetstream.Stream) {
	t.Helper()
	js := b.JS(t)
	nodetest.Until(t, fmt.Sprintf("%s holds %d messages", stream, n), func() (met bool) {
		var err error
		s, err = js.Stream(t.Context(), stream)
		return err == nil && s.CachedInfo().State.Msgs == n
	})
	return s
}

// lying counts the messages of a subject that lie in a stream: probes of the stream are none of them.
func (b *bundle) lying(t *testing.T, stream, subject string) uint64 {
	t.Helper()
	s := testenv.Must(b.JS(t).Stream(t.Context(), stream))(t)
	info := testenv.Must(s.Info(t.Context(), jetstream.WithSubjectFilter(subject)))(t)
	return info.State.Subjects[subject]
}

// A request that kills its services is removed and recorded once, although two nodes run, and its items continue in
// four pieces that get few deliveries.
func TestExhaustedRequestIsRemovedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	req := nodetest.Patient()
	req.Steps[0].Chunk = 8
	run := b.Start(t, req, 8)
	slice := b.Sent(t, run, 1)[0]
	b.exhaust(t, wire.StreamWork, "statement")
	b.Sent(t, run, 4)
	letter := b.Buried(t, 1)[0]
	if letter.Endpoint != "statement" || letter.Cause != workqueue.CodeDeliveries || letter.Items != 8 ||
		letter.Deliveries != wire.MaxDeliver || letter.State != deadletter.LetterReissued || letter.Mode != "batch" ||
		*letter.Run != run || *letter.Slice != slice.ID || *letter.Root != slice.ID || letter.Size == 0 ||
		!strings.HasPrefix(letter.Origin, "node test ") {
		t.Errorf("the letter is %+v", letter)
	}
	stream := b.holding(t, wire.StreamWork, 4) // the pieces alone
	msg, err := stream.GetLastMsgForSubject(t.Context(), wire.WorkSubject("statement"))
	want := strconv.Itoa(wire.SuspectDeliveries)
	if err != nil || msg.Header.Get(wire.HeaderDeliveries) != want {
		t.Errorf("a piece may be delivered %q times, %v; want %s", msg.Header.Get(wire.HeaderDeliveries), err, want)
	}
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, run, 8)
	testenv.Same(t, b.Node.Stats().Expired, 0, "slices had to wait for their deadline")
}

// No node was there to hear of it: the leader finds it, and what can be handed to services is left alone.
func TestExhaustedRequestIsFoundWithoutAnAdvisory(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	cfg := nodetest.Config(t)
	cfg.Grace = nodetest.Stuck
	gone := b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg)
	b.Node = gone.Node
	req := nodetest.Patient()
	req.Steps[0].Chunk = 4
	run := b.Start(t, req, 12)
	b.Sent(t, run, 3)
	testenv.NoError(t, gone.Stop())
	b.exhaust(t, wire.StreamWork, "statement")
	cfg.ReconcileInterval = 200 * time.Millisecond
	b.Node = b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg).Node
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.Buried(t, 1)
	b.WantSound(t, l, run, 12)
	nodetest.Until(t, "it is removed", func() bool { return b.Node.Stats().Exhausted > 0 })
	if n := b.Node.Stats(); n.Expired != 0 || n.Exhausted != 1 {
		t.Errorf("%d slices had to wait for their deadline, %d messages were removed; want 0 and 1", n.Expired, n.Exhausted)
	}
}

// nested is a request of a flow, as a service would send it.
func nested(t *testing.T, meta wire.Meta, to string) *nats.Msg {
	t.Helper()
	var err error
	meta.ReplyTo, err = wire.ParseReturn(to)
	testenv.NoError(t, err)
	meta.Attempt, meta.Generation = 1, 1
	builder := wire.NewRequestBuilder("accounts", meta, 1<<20)
	builder.Add(0, "k", []byte(`{}`))
	return builder.Msg()
}

// ask publishes a request and makes the consumer that it is for.
func (b *bundle) ask(t *testing.T, msg *nats.Msg) {
	t.Helper()
	js := b.JS(t)
	testenv.NoError(t, stream.EnsureConsumer(t.Context(), js, "accounts", stream.ConsumerSettings{}))
	testenv.Must(js.PublishMsg(t.Context(), msg))(t)
}

// A flow that waits for a request which no one can answer is told.
func TestExhaustedRequestOfAFlow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	meta := wire.Meta{Run: uuid.New(), Slice: uuid.New(), Root: uuid.New(), Stack: "statement:1"}
	b.ask(t, nested(t, meta, "tranche.stage.statement.1.0.accounts"))
	b.exhaust(t, wire.StreamWork, "accounts")
	b.drained(t, wire.StreamWork)
	letter := b.Buried(t, 1)[0]
	if letter.State != deadletter.LetterReissued || letter.Stack != "statement:1" || uuid.UUID(*letter.Root) != meta.Root {
		t.Errorf("the letter is %+v", letter)
	}
	stage := testenv.Must(b.JS(t).Stream(t.Context(), wire.StreamStage))(t)
	msg, err := stage.GetLastMsgForSubject(t.Context(), "tranche.stage.statement.1.0.accounts")
	if err != nil || msg.Header.Get(wire.HeaderErrorCode) != wire.CodeDeliveries ||
		msg.Header.Get(wire.HeaderFinal) != "0" || msg.Header.Get(wire.HeaderSlice) != meta.Slice.String() {
		t.Errorf("the flow is told %v, %v", msg, err)
	}
	testenv.Same(t, b.lying(t, wire.StreamStage, "tranche.stage.statement.1.0.accounts"), 1, "times the flow is told")
}

// A caller who waits is told, and the request waits for an operator.
func TestExhaustedRequestOfACaller(t *testing.T) {
	t.Parallel()
	b := setup(t)
	to := "tranche.call.edge.token.accounts"
	answers := testenv.Must(b.NC.SubscribeSync(to))(t)
	b.ask(t, nested(t, wire.Meta{Run: uuid.New(), Slice: uuid.New(), Mode: wire.ModeSingle}, to))
	b.exhaust(t, wire.StreamWork, "accounts")
	msg := testenv.Must(answers.NextMsg(nodetest.Stuck))(t)
	testenv.Same(t, msg.Header.Get(wire.HeaderErrorCode), wire.CodeDeliveries, "the caller is told %v", msg)
	b.drained(t, wire.StreamWork)
	testenv.Same(t, b.Buried(t, 1)[0].State, deadletter.LetterWaiting, "the letter")
}

// A reply that kills the flow it is for gives the whole chunk back to the node that asked for it.
func TestExhaustedReplyOfAFlow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	js := b.JS(t)
	testenv.NoError(t, stream.EnsureStageConsumer(t.Context(), js, "statement"))
	req := nodetest.Patient()
	req.Steps[0].Chunk = 4
	run := b.Start(t, req, 4)
	slice := b.Sent(t, run, 1)[0]
	request := b.take(t, "statement")
	// The flow suspends the chunk, and its nested request is the sixth of its stage.
	asked := uuid.New()
	asked[14], asked[15] = asked[14]&^0x1f, 5
	state := &nats.Msg{
		Subject: wire.FlowStateSubject("statement", asked), Header: request.Headers(), Data: []byte(`{}`),
	}
	state.Header.Del(wire.HeaderMsgID)
	state.Header.Set("Tranche-Flow-Answered", "1") // one item needed no one else, and its slot is on its way
	answer := nested(t, wire.Meta{Run: uuid.UUID(run), Slice: asked}, "")
	answer.Subject = "tranche.stage.statement.1.5.accounts"
	for _, msg := range []*nats.Msg{state, answer} {
		testenv.Must(js.PublishMsg(t.Context(), msg))(t)
	}
	testenv.NoError(t, request.DoubleAck(t.Context()))
	b.exhaust(t, wire.StreamStage, "statement")
	b.drained(t, wire.StreamStage)
	f := &nodetest.Forger{JS: js, Run: run}
	f.Publish(t, f.Reply(slice.ID, -1, `{"slots":[{"i":0,"d":{"of":"C0"}}]}`))
	b.Sent(t, run, 3)
	letter := b.Buried(t, 1)[0]
	if letter.State != deadletter.LetterReissued || letter.Endpoint != "statement" || *letter.Run != run {
		t.Errorf("the letter is %+v", letter)
	}
	var state1, code string
	err := b.Pool.QueryRow(t.Context(), `SELECT state, error_code FROM work_slice WHERE id = $1`, slice.ID).
		Scan(&state1, &code)
	if err != nil || state1 != "recorded" || code != workqueue.CodeDeliveries {
		t.Errorf("the slice is %s with %s, %v", state1, code, err)
	}
	b.Serve(t, "statement", nodetest.Echo)
	b.Want(t, run, 1, 4, 0)
	b.WantRight(t, run, 4)
	b.Check(t)
}

func (b *bundle) take(t *testing.T, endpoint string) (msg jetstream.Msg) {
	t.Helper()
	js := b.JS(t)
	nodetest.Until(t, "a request comes", func() bool {
		consumer, err := js.Consumer(t.Context(), wire.StreamWork, wire.ConsumerName(endpoint))
		if err != nil {
			return false
		}
		msg, err = consumer.Next(jetstream.FetchMaxWait(time.Second))
		return err == nil
	})
	return msg
}

// A service that gives a chunk up by itself, because it was delivered too often, leaves a letter for operators to see.
func TestServiceThatGivesAChunkUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if len(chunk.Items()) > 1 {
			return endpoints.Retry(wire.CodeDeliveries, "delivered 6 times")
		}
		return nodetest.Echo(ctx, chunk)
	})
	req := nodetest.Patient()
	req.Steps[0].Chunk = 4
	run := b.Start(t, req, 4)
	b.Want(t, run, 1, 4, 0)
	letter := b.Buried(t, 1)[0]
	if letter.State != deadletter.LetterReissued || letter.Cause != workqueue.CodeDeliveries || *letter.Run != run ||
		letter.Service == "" || letter.Endpoint != "statement" {
		t.Errorf("the letter is %+v", letter)
	}
	out, err := b.Node.DeadLetters().Requeue(t.Context(), deadletter.DeadSelection{Refs: []string{letter.ID.String()}},
		"ann")
	if err != nil || out.Requeued != 0 || len(out.Refused) != 1 {
		t.Errorf("requeued %+v, %v", out, err)
	}
	b.Check(t)
}

// An advisory that someone made up, or that is about a stream of before, takes nothing away; nor does one about a
// request that no one has taken yet.
func TestAdvisoriesThatAreNotTrue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Start(t, nodetest.Patient(), 10)
	b.Sent(t, run, 1)
	advisories := []string{``, `{`, `{"stream":"TRANCHE_REPLY","stream_seq":1}`,
		`{"stream":"TRANCHE_WORK","consumer":"statement","stream_seq":999,"timestamp":"2100-01-01T00:00:00Z"}`,
		`{"stream":"TRANCHE_WORK","consumer":"statement","stream_seq":1,"timestamp":"2001-01-01T00:00:00Z"}`}
	for _, consumer := range []string{"statement", "debug", "", "a.b", "*"} {
		advisories = append(advisories, fmt.Sprintf(`{"stream":"TRANCHE_WORK","consumer":%q,"stream_seq":1,`+
			`"deliveries":9999999999,"timestamp":"2100-01-01T00:00:00Z"}`, consumer))
	}
	for _, body := range advisories {
		testenv.NoError(t, b.NC.Publish("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.TRANCHE_WORK.x", []byte(body)))
	}
	testenv.NoError(t, b.NC.Flush())
	// The node sees to advisories in the order in which they come: the last one is true, and tells that it is done.
	b.ask(t, nested(t, wire.Meta{Run: uuid.New(), Slice: uuid.New()}, "tranche.stage.statement.1.0.accounts"))
	b.exhaust(t, wire.StreamWork, "accounts")
	testenv.Same(t, b.Buried(t, 1)[0].Endpoint, "accounts", "the endpoint of a live request that is buried")
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, run, 10)
	l.WantOnce(t, run, 10)
}

// Requests that are handed back, or wait while their consumer is paused, are not done with, however often the leader
// looks.
func TestSweepLeavesUnsettledWorkAlone(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	cfg := nodetest.Config(t)
	cfg.ReconcileInterval = time.Millisecond
	b.Node = b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg).Node
	req := nodetest.Patient()
	req.Steps[0].Chunk = 5
	run := b.Start(t, req, 500)
	b.Sent(t, run, req.Steps[0].InFlight)
	js := b.JS(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	most := uint64(0) // deliveries: no request is to come near those after which a service gives it up
	for round := 0; ctx.Err() == nil && most < wire.DefaultDeliveries-4; round++ {
		consumer := testenv.Must(js.Consumer(t.Context(), wire.StreamWork, "statement"))(t)
		batch, err := consumer.FetchNoWait(1 + round%7)
		if err != nil {
			continue
		}
		for msg := range batch.Messages() {
			at := testenv.Must(msg.Metadata())(t)
			most = max(most, at.NumDelivered)
			switch round % 3 {
			case 0:
				err = msg.Nak()
			case 1:
				err = msg.NakWithDelay(time.Millisecond)
			default:
				err = msg.NakWithDelay(20 * time.Millisecond)
			}
			testenv.NoError(t, err)
		}
		if round%10 == 4 {
			until := time.Now().Add(20 * time.Millisecond)
			testenv.Must(js.PauseConsumer(t.Context(), wire.StreamWork, "statement", until))(t)
		}
	}
	if n := b.Node.Stats().Exhausted; n != 0 || len(b.Letters(t)) != 0 {
		t.Errorf("%d messages were removed", n)
	}
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, run, 500)
	l.WantOnce(t, run, 500)
	if n := b.Node.Stats().Exhausted; n != 0 || len(b.Letters(t)) != 0 {
		t.Errorf("%d messages were removed", n)
	}
}
