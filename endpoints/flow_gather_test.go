package endpoints

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
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

// requestFor takes one request for an endpoint that no one serves.
func (b *bundle) requestFor(endpoint string) jetstream.Msg {
	b.t.Helper()
	check(b.t, stream.EnsureConsumer(b.ctx, b.js, endpoint, stream.ConsumerSettings{}))
	consumer := testenv.Must(b.js.Consumer(b.ctx, wire.StreamWork, endpoint))(b.t)
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
			testenv.Same(t, string(w.slots[i].Data), fmt.Sprintf(`{"square":%d}`, 1001*i), "seed %d: slot %d", seed, i)
		}
		if e := w.slots[11].Err; e == nil || e.Code != wire.CodeUnanswered || !e.Retry {
			t.Errorf("seed %d: slot 11: %v", seed, e)
		}
		b.done(wire.StreamStage, "flow")
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
	testenv.Same(t, string(b.collect(1)[meta.Slice].slots[0].Data), `{"square":1000}`, "slot 0")
	b.done(wire.StreamStage, "flow")
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
	b.logs("left to instances of another version", 1)
	check(t, stop())
	stop = b.Run(instance("one"))
	testenv.Same(t, string(b.collect(1)[meta.Slice].slots[0].Data), `{"square":1000}`, "with both versions")
	check(t, stop())

	meta = suspend()
	began := time.Now() // before the first instance that hands it back
	const rest = 200 * time.Millisecond
	two := instance("two")
	two.endpoints[0].flow.Rest = rest
	b.Run(two)
	w := b.collect(1)[meta.Slice]
	w.fails(t, wire.CodeFlowChanged, true, 0)
	if took := time.Since(began); took < flow.MaxChanged*rest {
		t.Errorf("it was abandoned after %s", took)
	}
}

// TestLegsOfAJoinArriveTogether makes both replies of many chunks come together, one whole and the other
// in parts, to two instances. No chunk is lost, and none continues without a leg.
func TestLegsOfAJoinArriveTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		serveFlow(b, "flow", twoStages(true), Concurrency(8))
	}
	callees := b.service()
	check(t, HandleEach(callees, "double", doubleOf, Concurrency(8)))
	check(t, HandleList(callees, "square", func(_ context.Context, c *Chunk[number, square]) error {
		for _, item := range c.Items() {
			item.Reply(square{item.In.N})
			c.Flush()
		}
		return nil
	}, Concurrency(8)))
	b.Run(callees)
	const chunks, items = 50, 3
	for range chunks {
		b.ask("flow", numbers(items))
	}
	for slice, w := range b.collect(chunks) {
		if w.answered != items || w.failure != nil {
			t.Fatalf("slice %s: answered %d, failure %v", slice, w.answered, w.failure)
		}
		for i := range items {
			testenv.MustSame(t, string(w.slots[i].Data), fmt.Sprintf(`{"square":%d}`, 2001*i), "slice %s: slot %d, %v", slice, i,
				w.slots[i].Err)
		}
	}
	testenv.Same(t, len(b.drainReplies()), 0, "further replies")
}

// spoil puts something else in the place of a part of a suspended chunk.
func (b *bundle) spoil(meta wire.Meta, part string, change func(h nats.Header, body []byte) []byte) {
	b.t.Helper()
	stream := testenv.Must(b.js.Stream(b.ctx, wire.StreamFlow))(b.t)
	subject := wire.FlowPrefix + "flow." + wire.NewFlowID(meta, "flow", 0).String() + "." + part
	msg := nats.NewMsg(subject)
	if found, err := stream.GetLastMsgForSubject(b.ctx, subject); err == nil {
		msg.Header, msg.Data = found.Header, found.Data
	}
	msg.Data = change(msg.Header, msg.Data)
	b.publish(msg)
}

// TestSpoiledStatesAndHeads has someone write into the stream of suspended chunks. No service dies of it, and the
// asker is told, as long as the state names it.
func TestSpoiledStatesAndHeads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveFlow(b, "flow", twoStages(true))
	replace := func(from, to string) func(nats.Header, []byte) []byte {
		return func(_ nats.Header, body []byte) []byte {
			testenv.Has(t, string(body), from, "the body")
			return []byte(strings.Replace(string(body), from, to, 1))
		}
	}
	header := func(name, value string) func(nats.Header, []byte) []byte {
		return func(h nats.Header, body []byte) []byte {
			h.Set(name, value)
			return body
		}
	}
	text := func(s string) func(nats.Header, []byte) []byte {
		return func(nats.Header, []byte) []byte { return []byte(s) }
	}
	told := map[uuid.UUID]string{}
	for name, tc := range map[string]struct {
		part   string
		change func(nats.Header, []byte) []byte
		told   bool
	}{
		"empty":           {"0", text(""), true},
		"not JSON":        {"0", text("\x00\xff"), true},
		"deep":            {"0", text(strings.Repeat("[", 1<<17)), true},
		"cut":             {"0", func(_ nats.Header, body []byte) []byte { return body[:len(body)/2] }, true},
		"stage beyond":    {"0", replace(`"stage":1`, `"stage":9`), true},
		"stage below":     {"0", replace(`"stage":1`, `"stage":-1`), true},
		"waits beyond":    {"0", replace(`"r":[0,1]`, `"r":[0,7]`), true},
		"twice":           {"0", replace(`"i":1`, `"i":0`), true},
		"too many":        {"0", replace(`"total":3`, `"total":1`), true},
		"state of a kind": {"0", replace(`"s":{"n":0`, `"s":{"n":"x"`), true},
		"no requests":     {"0", replace(`"target":"double"`, `"target":"dou ble"`), true},
		"parts":           {"0", header(wire.HeaderFlowParts, "16385"), false},
		"more parts":      {"0", header(wire.HeaderFlowParts, "2"), false},
		"no part":         {"0", header(wire.HeaderFlowParts, "-1"), false},
		"no asker":        {"0", header(wire.HeaderSlice, "nobody"), false},
		"head":            {flow.PartHead, text("{"), false},
		"head of another": {flow.PartHead, text(`{"parts":[{"n":"x","r":5}]}`), false},
		"head of dots":    {flow.PartHead, text(`{"parts":[{"n":"a.>","r":0}]}`), false},
		"head of a part": {
			flow.PartHead, text(`{"parts":[{"n":"nowhere","r":0,"i":[-1,0,1,2,9000],"f":true,"a":-5}]}`), false,
		},
		"head is done": {flow.PartHead, text(`{"parts":[],"done":"somebody"}`), false},
	} {
		meta := b.ask("flow", numbers(3))
		requests := []jetstream.Msg{b.requestFor("double"), b.requestFor("square")}
		b.spoil(meta, tc.part, tc.change)
		b.publish(part(requests[0], 3, `{"i":0,"d":{"n":0}}`, `{"i":1,"d":{"n":1}}`, `{"i":2,"d":{"n":2}}`))
		b.publish(part(requests[1], 0))
		if tc.told {
			told[meta.Slice] = name
		}
	}
	for len(told) > 0 {
		for slice, w := range b.collect(1) { // also of others, which are abandoned after many deliveries
			name, ours := told[slice]
			if ours && (w.failure == nil || w.failure.Code != wire.CodeFlowChanged || !w.failure.Retry) {
				t.Errorf("%s: answered %d, failure %v", name, w.answered, w.failure)
			}
			delete(told, slice)
		}
	}
	meta := b.ask("flow", numbers(1))
	b.publish(part(b.requestFor("double"), 1, `{"i":0,"d":{"n":1}}`))
	b.publish(part(b.requestFor("square"), 1, `{"i":0,"d":{"square":1}}`))
	var w *whole
	for w == nil {
		w = b.collect(1)[meta.Slice]
	}
	testenv.Same(t, string(w.slots[0].Data), `{"square":1001}`, "a sound chunk: %+v", w)
}

// TestRepliesOfEveryWrongKind has the callee of a flow answer in ways that it should not. The flow's own asker has an
// outcome for each item anyway.
func TestRepliesOfEveryWrongKind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveFlow(b, "flow", twoStages(false))
	one := func(n int) string { return fmt.Sprintf(`{"i":%d,"d":{"n":%d}}`, n, n) }
	for name, tc := range map[string]struct {
		reply   func(request jetstream.Msg) []*nats.Msg
		want    string // of each item: r is its result, u that it is unanswered, - that it has no slot
		failure string
	}{
		"only the end": {func(r jetstream.Msg) []*nats.Msg { return []*nats.Msg{part(r, 0)} },
			"uuu", ""},
		"a failure": {func(r jetstream.Msg) []*nats.Msg {
			msg := part(r, 1, one(1))
			msg.Header.Set(wire.HeaderErrorCode, "down")
			msg.Header.Set(wire.HeaderError, "down")
			msg.Data = []byte(`{"slots":[` + one(1) + `],"error":{"code":"down","message":"down","retry":true}}`)
			return []*nats.Msg{msg}
		}, "-r-", "down"},
		"foreign only": {func(r jetstream.Msg) []*nats.Msg { return []*nats.Msg{part(r, 2, one(8), one(9))} },
			"uuu", ""},
		"more than asked": {func(r jetstream.Msg) []*nats.Msg {
			return []*nats.Msg{part(r, 6, one(0), one(1), one(2), one(3), one(4), one(5))}
		}, "rrr", ""},
		"no end": {func(r jetstream.Msg) []*nats.Msg {
			return []*nats.Msg{part(r, -1, one(0)), part(r, -1, one(1)), part(r, -1, one(2))}
		}, "rrr", ""},
		"foreign and doubled": {func(r jetstream.Msg) []*nats.Msg {
			return []*nats.Msg{part(r, -1, one(7), one(0)), part(r, 5, one(1), `{"i":1,"d":{"n":5}}`, one(2))}
		}, "rrr", ""},
		"two ends": {func(r jetstream.Msg) []*nats.Msg {
			return []*nats.Msg{part(r, 3, one(0)), part(r, 3, one(1)), part(r, -1, one(2))}
		}, "rrr", ""},
	} {
		meta := b.ask("flow", numbers(3))
		for _, msg := range tc.reply(b.requestFor("double")) {
			b.publish(msg)
		}
		want := map[int]string{}
		for i, what := range tc.want {
			switch what {
			case 'r':
				want[i] = fmt.Sprintf(`{"square":%d}`, 1000*i)
			case 'u':
				want[i] = wire.CodeUnanswered
			}
		}
		b.collect(1)[meta.Slice].holds(t, name, tc.failure, want)
		b.done(wire.StreamStage, "flow")
		b.drainReplies()
	}
}

// TestAChunkThatIsNotThereYet has replies come before the state that they are for can be read: a replica that is behind
// shows nothing of it, and of one that is being written again only a part is there.
func TestAChunkThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveFlow(b, "flow", twoStages(false))
	stream := testenv.Must(b.js.Stream(b.ctx, wire.StreamFlow))(t)
	for name, hide := range map[string]func(state *jetstream.RawStreamMsg){
		"none": func(state *jetstream.RawStreamMsg) { check(t, stream.DeleteMsg(b.ctx, state.Sequence)) },
		"torn": func(state *jetstream.RawStreamMsg) {
			part := &nats.Msg{Subject: state.Subject, Header: maps.Clone(state.Header), Data: state.Data}
			part.Header.Set(wire.HeaderFlowParts, "2")
			b.publish(part)
		},
	} {
		meta := b.ask("flow", numbers(1))
		request := b.requestFor("double")
		state := testenv.Must(stream.GetLastMsgForSubject(b.ctx, wire.FlowPrefix+"flow."+wire.NewFlowID(meta, "flow",
			0).String()+".0"))(t)
		hide(state)
		sought := b.logged.FilterMessageSnippet("looking for it again").Len()
		b.publish(part(request, 1, `{"i":0,"d":{"n":1}}`))
		b.logs("looking for it again", sought+2)
		b.publish(&nats.Msg{Subject: state.Subject, Header: state.Header, Data: state.Data})
		if w := b.collect(1)[meta.Slice]; w == nil || string(w.slots[0].Data) != `{"square":1000}` {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
