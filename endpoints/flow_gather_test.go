package endpoints

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// twoStages asks double and, when join is set, square.
func twoStages(join bool) numberStages {
	return numberStages{
		perItem(func(item *numberItem) {
			toDouble.Ask(item, item.In)
			if join {
				toSquare.Ask(item, item.In)
			}
		}),
		perItem(func(item *numberItem) {
			item.Reply(square{1000*toDouble.Answer(item).N + toSquare.Answer(item).Square})
		}),
	}
}

// requestFor takes one request for an endpoint that nobody serves.
func (b *bundle) requestFor(endpoint string) jetstream.Msg {
	b.t.Helper()
	check(b.t, stream.EnsureConsumer(b.ctx, b.js, endpoint, stream.ConsumerSettings{}))
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, endpoint)
	check(b.t, err)
	msg := b.next(consumer)
	check(b.t, msg.DoubleAck(b.ctx))
	return msg
}

// part makes one message of a reply. A final below 0 means that it is not the last one.
func part(request jetstream.Msg, final int, slots ...string) *nats.Msg {
	h := nats.Header{}
	for _, name := range []string{wire.HeaderVersion, wire.HeaderRun, wire.HeaderSlice, wire.HeaderStep,
		wire.HeaderAttempt, wire.HeaderGeneration,
		wire.HeaderMode} {
		h.Set(name, request.Headers().Get(name))
	}
	if final >= 0 {
		h.Set(wire.HeaderFinal, fmt.Sprint(final))
	}
	return &nats.Msg{Subject: request.Headers().Get(wire.HeaderReplyTo), Header: h,
		Data: []byte(`{"slots":[` + strings.Join(slots, ",") + `]}`)}
}

func TestRepliesInSeveralMessagesInAnyOrderAndTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		serveFlow(b, "flow", twoStages(true))
	}
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1))
		meta := b.ask("flow", numbers(12))
		var messages []*nats.Msg
		for endpoint, write := range map[string]string{
			"double": `{"i":%d,"d":{"n":%d}}`, "square": `{"i":%d,"d":{"square":%d}}`,
		} {
			request := b.requestFor(endpoint)
			var slots []string
			for _, i := range random.Perm(12) {
				if i == 11 {
					continue // left out
				}
				slots = append(slots, fmt.Sprintf(write, i, i))
			}
			cut := 1 + random.IntN(5)
			messages = append(messages, part(request, -1, slots[:cut]...), part(request, -1, slots[cut:2*cut]...),
				part(request, 11, slots[2*cut:]...))
		}
		messages = append(messages, messages...)
		random.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
		for _, msg := range messages {
			b.publish(msg)
		}
		w := b.collect(1)[meta.Slice]
		if w == nil || w.answered != 12 || w.failure != nil {
			t.Fatalf("seed %d: %+v", seed, w)
		}
		for i := range 11 {
			if want := fmt.Sprintf(`{"square":%d}`, 1001*i); string(w.slots[i].Data) != want {
				t.Errorf("seed %d: slot %d is %s, want %s", seed, i, w.slots[i].Data, want)
			}
		}
		if e := w.slots[11].Err; e == nil || e.Code != wire.CodeUnanswered || !e.Retry {
			t.Errorf("seed %d: slot 11: %v", seed, e)
		}
		eventually(t, "no reply is left", func() bool { return b.pending(wire.StreamStage, "flow") == 0 })
		b.drainReplies()
	}
}

func TestRepliesThatNobodyWaitsForAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := serveFlow(b, "flow", twoStages(false))
	meta := b.ask("flow", numbers(1))
	request := b.requestFor("double")
	good := part(request, 1, `{"i":0,"d":{"n":1}}`)
	flow := svc.endpoints[0].flow
	refused := func(change func(*nats.Msg)) {
		t.Helper()
		bad := &nats.Msg{Subject: good.Subject, Header: maps.Clone(good.Header), Data: good.Data}
		change(bad)
		before := flow.Refused.Load()
		b.publish(bad)
		eventually(t, "the reply is refused", func() bool { return flow.Refused.Load() == before+1 })
	}
	refused(func(m *nats.Msg) { m.Subject = "tranche.stage.flow.1.0.square" })
	refused(func(m *nats.Msg) { m.Subject = "tranche.stage.flow.2.0.double" })
	refused(func(m *nats.Msg) { m.Subject = "tranche.stage.flow.1.1.double" })
	refused(func(m *nats.Msg) { m.Subject = "tranche.stage.flow.x" })
	refused(func(m *nats.Msg) { m.Data = []byte("{") })
	refused(func(m *nats.Msg) { m.Header[wire.HeaderVersion] = []string{"9"} })
	refused(func(m *nats.Msg) {
		id, _ := wire.SplitSlice(meta.Slice)
		m.Header[wire.HeaderSlice] = []string{id.Slice(5).String()}
	})
	stale := part(request, 1, `{"i":0,"d":{"n":1}}`)
	stale.Header.Set(wire.HeaderSlice, wire.NewFlowID(meta, "flow", 5).Slice(0).String())
	b.publish(stale)
	eventually(t, "the reply is stale", func() bool { return flow.Stale.Load() == 1 })
	b.publish(good)
	if w := b.collect(1)[meta.Slice]; string(w.slots[0].Data) != `{"square":1000}` {
		t.Errorf("slot 0: %+v", w.slots[0])
	}
	eventually(t, "no reply is left", func() bool { return b.pending(wire.StreamStage, "flow") == 0 })
}

func TestVersionsOfAFlowSideBySide(t *testing.T) {
	t.Parallel()
	b := setup(t)
	instance := func(revision string) *Service {
		svc := b.service()
		check(t, HandleFlow(svc, "flow", twoStages(false), Revision(revision)))
		return svc
	}
	suspend := func() wire.Meta {
		stop := b.Run(instance("one"))
		meta := b.ask("flow", numbers(1))
		request := b.requestFor("double")
		check(t, stop())
		b.publish(part(request, 1, `{"i":0,"d":{"n":1}}`))
		return meta
	}
	meta := suspend()
	stop := b.Run(instance("two"))
	eventually(t, "the other version hands the chunk back", func() bool {
		return b.logged.FilterMessageSnippet("left to instances of another version").Len() > 0
	})
	check(t, stop())
	stop = b.Run(instance("one"))
	if w := b.collect(1)[meta.Slice]; string(w.slots[0].Data) != `{"square":1000}` {
		t.Errorf("with both versions: %+v", w)
	}
	check(t, stop())

	meta = suspend()
	began := time.Now() // before the first instance that hands it back
	b.Run(instance("two"))
	w := b.collect(1)[meta.Slice]
	if w.failure == nil || w.failure.Code != wire.CodeFlowChanged || !w.failure.Retry || w.answered != 0 {
		t.Errorf("with the new version only: answered %d, failure %v", w.answered, w.failure)
	}
	if took := time.Since(began); took < flow.MaxChanged*flow.ChangedDelay-time.Second {
		t.Errorf("it was given up after %s", took)
	}
}
