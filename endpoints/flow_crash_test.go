package endpoints

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// joined doubles and squares, with answers on the way: multiples of 5 in stage 0, of 7 in stage 1. What a stage notes
// of its chunk comes to the next, and payloads come to the first alone.
func joined() numberStages {
	stages := numberStages{
		perItem(func(item *numberItem) {
			item.State.N = item.In.N
			if item.In.N%5 == 0 {
				item.Reply(square{-5})
				return
			}
			toDouble.Ask(item, item.In)
		}),
		perItem(func(item *numberItem) {
			if item.In.N != 0 {
				item.Fail("payload", "it came to stage 1")
				return
			}
			item.State.Trail = append(item.State.Trail, toDouble.Answer(item).N)
			if item.State.N%7 == 0 {
				item.Reply(square{-7})
				return
			}
			toDouble.Ask(item, number{item.State.N})
			toSquare.Ask(item, number{item.State.N})
		}),
		perItem(func(item *numberItem) {
			item.Reply(square{item.State.Trail[0] + toDouble.Answer(item).N + toSquare.Answer(item).Square})
		}),
	}
	for n, stage := range stages {
		stages[n] = func(ctx context.Context, s *numberStage) error {
			if s.Shared.Stages != n || s.Number() != n {
				return fmt.Errorf("shared state %+v in stage %d", s.Shared, s.Number())
			}
			s.Shared.Stages++
			return stage(ctx, s)
		}
	}
	return stages
}

// joinedOf is what joined makes of a number.
func joinedOf(n int) int {
	switch {
	case n%5 == 0:
		return -5
	case n%7 == 0:
		return -7
	}
	return 4*n + n*n
}

func checkJoined(t testing.TB, what string, w *whole, items int) {
	t.Helper()
	if w.answered != items || w.failure != nil || len(w.slots) != items {
		t.Fatalf("%s: answered %d of %d, slots %d, failure %v", what, w.answered, items, len(w.slots), w.failure)
	}
	for i := range items {
		if i == 13 {
			if e := w.slots[i].Err; e == nil || *e != (wire.SlotError{Code: "unlucky", Message: "no 13", Retry: false}) {
				t.Errorf("%s: slot 13: %v", what, e)
			}
			continue
		}
		testenv.MustSame(t, string(w.slots[i].Data), fmt.Sprintf(`{"square":%d}`, joinedOf(i)), "%s: slot %d, %v", what, i,
			w.slots[i].Err)
	}
}

// shortAckWait makes the consumers of a flow with an AckWait that tests can wait for.
func (b *bundle) shortAckWait(endpoint string) {
	b.t.Helper()
	subjects := map[string]string{wire.StreamWork: wire.WorkSubject(endpoint),
		wire.StreamStage: wire.StageSubjects(endpoint)}
	for name, subject := range subjects {
		config := stream.ConsumerConfig(wire.ConsumerName(endpoint), subject)
		config.AckWait = 250 * time.Millisecond
		testenv.Must(b.js.CreateOrUpdateConsumer(b.ctx, name, config))(b.t)
	}
}

// crashAt has a service die when its flow comes to a step for the n-th time: its connection closes, so that nothing it
// does from then on leaves it.
func crashAt(svc *Service, at string, n int) (died chan struct{}) {
	died = make(chan struct{})
	var mu sync.Mutex
	svc.endpoints[0].flow.Crash = func(step string) {
		mu.Lock()
		defer mu.Unlock()
		if step != at {
			return
		}
		if n--; n == 0 {
			svc.host.NC.Close()
			close(died)
		}
	}
	return died
}

func TestAFlowSurvivesADeathAtEveryStep(t *testing.T) {
	t.Parallel()
	for times, steps := range map[int][]string{
		1: {"before state", "state stored", "request 0 sent", "request 1 sent", "reply parked", "reply noted",
			"before ack of part", "stage run", "answered", "state removed"},
		2: {"state stored", "request 0 sent", "stage run", "answered", "state removed"},
	} {
		for _, step := range steps {
			// In a world of its own, so that what a death leaves behind comes late to no one else.
			t.Run(fmt.Sprintf("%s %d", step, times), func(t *testing.T) {
				t.Parallel()
				setup(t).dieAt(step, times)
			})
		}
	}
}

// dieAt runs a flow one of whose services dies, and then another one.
func (b *bundle) dieAt(step string, times int) {
	b.t.Helper()
	const name = "flow"
	b.callees()
	b.shortAckWait(name)
	first, second := b.service(), b.service()
	check(b.t, HandleFlow(first, name, joined()))
	check(b.t, HandleFlow(second, name, joined()))
	died := crashAt(first, step, times)
	b.Run(first)
	meta := b.ask(name, numbers(30))
	await(b.t, "death at "+step, died)
	b.Run(second)
	whole := b.collect(1)[meta.Slice]
	if whole == nil {
		b.t.Fatalf("death at %s: another reply came", step)
	}
	checkJoined(b.t, "death at "+step, whole, 30)
	b.done(wire.StreamStage, name)
	b.done(wire.StreamWork, name)
}

// pending returns how many messages of an endpoint in a stream are not acknowledged.
func (b *bundle) pending(stream, endpoint string) int {
	b.t.Helper()
	consumer := testenv.Must(b.js.Consumer(b.ctx, stream, wire.ConsumerName(endpoint)))(b.t)
	info := consumer.CachedInfo()
	return int(info.NumPending) + info.NumAckPending
}

// done waits until nothing is pending, however long all of it takes.
func (b *bundle) done(stream, endpoint string) {
	b.t.Helper()
	for floor := uint64(0); b.pending(stream, endpoint) > 0; {
		eventually(b.t, "another message for "+endpoint+" is handled", func() bool {
			consumer := testenv.Must(b.js.Consumer(b.ctx, stream, wire.ConsumerName(endpoint)))(b.t)
			before := floor
			floor = consumer.CachedInfo().AckFloor.Stream
			return floor > before || b.pending(stream, endpoint) == 0
		})
	}
}

// drainReplies reads what is left of replies, and returns it.
func (b *bundle) drainReplies() (left []*wire.Reply) {
	b.t.Helper()
	recorder := b.recorder()
	for {
		batch := testenv.Must(recorder.FetchNoWait(100))(b.t)
		n := 0
		for msg := range batch.Messages() {
			n++
			reply := testenv.Must(wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{}))(b.t)
			left = append(left, reply)
			check(b.t, msg.DoubleAck(b.ctx))
		}
		if n == 0 {
			return left
		}
	}
}

func TestEveryMessageOfAFlowTenTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	for range 2 {
		serveFlow(b, "flow", joined())
	}
	const mark = "Test-Copy"
	nc := b.connect()
	js := testenv.Must(jetstream.New(nc))(t)
	for _, subject := range []string{wire.WorkPrefix + ">", wire.StagePrefix + ">", wire.FlowPrefix + ">"} {
		testenv.Must(nc.Subscribe(subject, func(msg *nats.Msg) {
			if msg.Header.Get(mark) != "" {
				return
			}
			again := &nats.Msg{Subject: msg.Subject, Header: nats.Header{mark: {"1"}}, Data: msg.Data}
			for name, values := range msg.Header {
				if name != wire.HeaderMsgID {
					again.Header[name] = values
				}
			}
			for range 9 {
				_, _ = js.PublishMsg(b.ctx, again) // a change of a head is refused
			}
		}))(t)
	}
	check(t, nc.Flush())
	meta := b.ask("flow", numbers(30))
	checkJoined(t, "first", b.collect(1)[meta.Slice], 30)
	for _, name := range []string{"flow", "double", "square"} {
		b.done(wire.StreamWork, name)
	}
	b.done(wire.StreamStage, "flow")
	for _, reply := range b.drainReplies() {
		if reply.Failure != nil || reply.Answered >= 0 && reply.Answered != 30 {
			t.Errorf("a further reply says %d, %v", reply.Answered, reply.Failure)
		}
		for _, slot := range reply.Slots {
			if slot.Err != nil && slot.Ordinal != 13 {
				t.Errorf("a further slot %d: %v", slot.Ordinal, slot.Err)
			}
		}
	}
}

func TestAStageThatKillsItsServicesIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	b.shortAckWait("flow")
	svc, stages, died := b.service(), joined(), make(chan struct{})
	stages[1] = func(context.Context, *numberStage) error {
		svc.host.NC.Close()
		close(died)
		return nil
	}
	check(t, HandleFlow(svc, "flow", stages))
	b.Run(svc)
	b.ask("flow", []payload{{6, `{"n":6}`}}, func(m *wire.Meta) { m.Deliveries = 1 })
	await(t, "death", died)
	serveFlow(b, "flow", joined()) // it would answer
	for _, w := range b.collect(1) {
		w.fails(t, wire.CodeDeliveries, true, 0)
	}
}
