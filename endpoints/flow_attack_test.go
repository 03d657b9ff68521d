package endpoints

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// TestAReplyOfManyMessages has a callee send one message for each item: all of them are noted in one place.
func TestAReplyOfManyMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		serveFlow(b, "flow", twoStages(false), Concurrency(128))
	}
	const items = 300
	meta := b.ask("flow", numbers(items))
	request := b.requestFor("double")
	watch := testenv.NewWatch(t)
	for i := range items {
		final := -1
		if i == items-1 {
			final = items
		}
		msg := part(request, final, fmt.Sprintf(`{"i":%d,"d":{"n":%d}}`, i, i))
		check(t, b.nc.PublishMsg(msg))
	}
	for taken := uint64(0); taken < items; { // however long all of them take
		eventually(t, "another message is taken", func() bool {
			replies, err := b.js.Consumer(b.ctx, wire.StreamStage, wire.ConsumerName("flow"))
			check(t, err)
			before := taken
			taken = replies.CachedInfo().AckFloor.Stream
			return taken > before
		})
	}
	w := b.collect(1)[meta.Slice]
	if w == nil || w.answered != items || w.failure != nil {
		t.Fatalf("%+v", w)
	}
	t.Logf("it took %s, and stood still for %s at the longest", watch.Ran(), watch.Longest())
	stood := watch.Longest() > stream.AckTimeout/2 // so the server may seem not to have answered in time
	back := b.logged.FilterMessageSnippet("could not be taken").Filter(func(entry observer.LoggedEntry) bool {
		return !stood || !strings.Contains(fmt.Sprint(entry.ContextMap()["error"]), context.DeadlineExceeded.Error())
	})
	if back.Len() > 0 {
		t.Errorf("%d messages were handed back: %v", back.Len(), back.All())
	}
}

// TestLegsOfAJoinArriveTogether has the replies to both requests of many chunks come at once, one whole and the other
// in parts, to two instances. No chunk is lost, and none goes on without a leg.
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
			if want := fmt.Sprintf(`{"square":%d}`, 2001*i); string(w.slots[i].Data) != want {
				t.Fatalf("slice %s: slot %d is %s %v, want %s", slice, i, w.slots[i].Data, w.slots[i].Err, want)
			}
		}
	}
	if left := b.drainReplies(); len(left) > 0 {
		t.Errorf("%d further replies", len(left))
	}
}

// spoil puts something else in the place of a part of a suspended chunk.
func (b *bundle) spoil(meta wire.Meta, part string, change func(h nats.Header, body []byte) []byte) {
	b.t.Helper()
	stream, err := b.js.Stream(b.ctx, wire.StreamFlow)
	check(b.t, err)
	subject := wire.FlowPrefix + "flow." + wire.NewFlowID(meta, "flow", 0).String() + "." + part
	msg := nats.NewMsg(subject)
	if found, err := stream.GetLastMsgForSubject(b.ctx, subject); err == nil {
		msg.Header, msg.Data = found.Header, found.Data
	}
	msg.Data = change(msg.Header, msg.Data)
	b.publish(msg)
}

// TestSpoiledStatesAndHeads has somebody write into the stream of suspended chunks. No service dies of it, and the
// asker is told, as long as it stands there who he is.
func TestSpoiledStatesAndHeads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveFlow(b, "flow", twoStages(true))
	replace := func(from, to string) func(nats.Header, []byte) []byte {
		return func(_ nats.Header, body []byte) []byte {
			if !strings.Contains(string(body), from) {
				t.Errorf("there is no %s in %s", from, body)
			}
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
		for slice, w := range b.collect(1) { // also of others, which are given up after many deliveries
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
	if string(w.slots[0].Data) != `{"square":1001}` {
		t.Errorf("a sound chunk: %+v", w)
	}
}

// TestRepliesOfEveryWrongKind has the callee of a flow answer in ways that it should not. The flow's own asker has an
// outcome for each item all the same.
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
		eventually(t, "no reply is left", func() bool { return b.pending(wire.StreamStage, "flow") == 0 })
		b.drainReplies()
	}
}

// TestAChunkThatIsNotThereYet has replies come before the state that they are for can be read: a replica that is behind
// shows nothing of it, and of one that is being written again only a part is there.
func TestAChunkThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveFlow(b, "flow", twoStages(false))
	stream, err := b.js.Stream(b.ctx, wire.StreamFlow)
	check(t, err)
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
		state, err := stream.GetLastMsgForSubject(b.ctx, wire.FlowPrefix+"flow."+wire.NewFlowID(meta, "flow",
			0).String()+".0")
		check(t, err)
		hide(state)
		sought := b.logged.FilterMessageSnippet("looked for again").Len()
		b.publish(part(request, 1, `{"i":0,"d":{"n":1}}`))
		eventually(t, "the chunk is looked for twice", func() bool {
			return b.logged.FilterMessageSnippet("looked for again").Len() >= sought+2
		})
		b.publish(&nats.Msg{Subject: state.Subject, Header: state.Header, Data: state.Data})
		if w := b.collect(1)[meta.Slice]; w == nil || string(w.slots[0].Data) != `{"square":1000}` {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
