package pginbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// What a scripted handler does with an item.
const (
	replies = iota
	fails
	retries
	leavesOut
)

// How a scripted delivery ends.
const (
	ends = iota
	returnsError
	panics
	diesBeforeReply
	diesBeforeAck
)

// script is what the handler does when it sees an item that is not remembered.
type script struct {
	items [scriptedItems]int
	end   int
}

const scriptedItems = 12

// scripted is a service whose handler follows a script, and writes for the items that it answers permanently.
type scripted struct {
	b       *bundle
	script  atomic.Pointer[script]
	answers atomic.Int64 // makes each answer another
	running *endpointstest.Instance
	js      jetstream.JetStream
}

func (s *scripted) handle(ctx context.Context, c *chunk) error {
	script := s.script.Load()
	for _, item := range c.Items() {
		what := script.items[item.Ordinal]
		if what == replies || what == fails {
			account := c.Meta().Run.String() + "/" + item.Key
			if _, err := pginbox.Tx(ctx).Exec(ctx, writeEffects, []string{account}); err != nil {
				return err
			}
		}
		switch what {
		case replies:
			item.Reply(fmt.Sprint(s.answers.Add(1)))
		case fails:
			item.Fail("failed", "answer %d", s.answers.Add(1))
		case retries:
			item.Retry("busy", "later")
		}
	}
	switch script.end {
	case returnsError:
		return errHandler
	case panics:
		panic("as scripted")
	}
	return nil
}

// deliver delivers a request by send and returns the reply. An instance that the script has die is replaced.
func (s *scripted) deliver(end int, send func() *endpointstest.Pending) *endpointstest.Reply {
	var kill *endpointstest.Kill
	switch end {
	case diesBeforeReply:
		kill = s.b.kit.KillBeforeReply("book")
	case diesBeforeAck:
		kill = s.b.kit.KillBetween("book", 0)
	}
	pending := send()
	if kill != nil {
		s.running = kill.Wait().Restart()
	}
	reply := pending.Wait()
	if end == diesBeforeAck {
		reply = pending.Wait() // of the second delivery
	}
	s.settled()
	return reply
}

// settled waits until all requests are acknowledged. One that is not when the next delivery kills its instance would be
// delivered again, be handled by the next script, and be answered where no one looks.
func (s *scripted) settled() {
	s.b.t.Helper()
	s.b.await("all requests are acknowledged", func() bool {
		stream := testenv.Must(s.js.Stream(s.b.t.Context(), wire.StreamWork))(s.b.t)
		return stream.CachedInfo().State.Msgs == 0
	})
}

// TestOnceWhateverHappens compares an inbox with what should be: each item's effect and its answer are there once, from
// the first delivery that ended well on, whatever is delivered again, overlaps, fails, or crashes.
func TestOnceWhateverHappens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	js := testenv.Must(jetstream.New(b.kit.Conn()))(t)
	s := &scripted{b: b, js: js}
	s.running = b.serve(s.handle)
	rapid.Check(t, func(r *rapid.T) {
		run := uuid.New()
		known := map[int]string{} // the oracle: the answers that are final
		var sent []*endpointstest.Request
		for range rapid.IntRange(1, 5).Draw(r, "deliveries") {
			script := &script{end: rapid.IntRange(ends, diesBeforeAck).Draw(r, "end")}
			for i := range script.items {
				script.items[i] = rapid.IntRange(replies, leavesOut).Draw(r, "item")
			}
			s.script.Store(script)
			var reply *endpointstest.Reply
			if len(sent) > 0 && rapid.Bool().Draw(r, "again") {
				request := rapid.SampledFrom(sent).Draw(r, "request")
				reply = s.deliver(script.end, func() *endpointstest.Pending { return b.kit.PostAgain(request) })
			} else {
				parts := chunkOf(r, run)
				reply = s.deliver(script.end, func() *endpointstest.Pending { return b.kit.Post("book", parts...) })
			}
			sent = append(sent, reply.Request)
			compare(r, reply, script, known)
		}
		n := b.count(`SELECT count(*) FROM effects WHERE account LIKE $1`, run.String()+"/%")
		if n != len(known) {
			r.Fatalf("%d effects of %d items that have an answer", n, len(known))
		}
	})
}

// chunkOf draws a chunk of the run's items, in any order.
func chunkOf(r *rapid.T, run uuid.UUID) []endpointstest.Part {
	ordinals := rapid.SliceOfNDistinct(rapid.IntRange(0, scriptedItems-1), 1, scriptedItems, rapid.ID).Draw(r, "chunk")
	parts := []endpointstest.Part{endpointstest.Meta(func(m *wire.Meta) { m.Run = run })}
	for _, ordinal := range ordinals {
		parts = append(parts, endpointstest.ItemAt(ordinal, fmt.Sprintf("K%d", ordinal), "in"))
	}
	return parts
}

// compare checks a reply against the oracle, and has it learn.
func compare(r *rapid.T, reply *endpointstest.Reply, script *script, known map[int]string) {
	got := map[int]string{}
	for _, slot := range reply.Slots {
		got[slot.Ordinal] = fmt.Sprintf("%s %v", slot.Data, slot.Err)
	}
	failed := script.end == returnsError || script.end == panics
	open := 0
	for ordinal := range reply.Request.Keys {
		answer, answered := got[ordinal]
		if before, ok := known[ordinal]; ok {
			if answer != before {
				r.Fatalf("item %d was answered by %q and then by %q", ordinal, before, answer)
			}
			continue
		}
		open++
		if wants := !failed && script.items[ordinal] != leavesOut; answered != wants {
			r.Fatalf("item %d has answer %q; the script says %d, ending %d", ordinal, answer, script.items[ordinal], script.end)
		}
		if final := script.items[ordinal] <= fails; answered && final {
			known[ordinal] = answer
		}
	}
	if wants := failed && open > 0; (reply.Failure != nil) != wants {
		r.Fatalf("the failure is %v; the script ends by %d, with %d open", reply.Failure, script.end, open)
	}
}
