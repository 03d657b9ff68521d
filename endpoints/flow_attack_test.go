package endpoints

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// TestAReplyOfManyMessages has a callee send one message for each item: all of them are noted in one place.
func TestAReplyOfManyMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		svc := b.service()
		check(t, HandleFlow(svc, "flow", twoStages(false), Concurrency(128)))
		b.run(svc)
	}
	const items = 1000
	meta := b.ask("flow", numbers(items))
	request := b.requestFor("double")
	began := time.Now()
	for i := range items {
		final := -1
		if i == items-1 {
			final = items
		}
		msg := part(request, final, fmt.Sprintf(`{"i":%d,"d":{"n":%d}}`, i, i))
		check(t, b.nc.PublishMsg(msg))
	}
	w := b.collect(1)[meta.Slice]
	if w == nil || w.answered != items || w.failure != nil {
		t.Fatalf("%+v", w)
	}
	t.Logf("it took %s", time.Since(began))
	if n := b.logged.FilterMessageSnippet("could not be taken").Len(); n > 0 {
		t.Errorf("%d messages were handed back", n)
	}
}

// TestTargetsOfOneName has a package mix up the names of its targets, and ask with and without KeepErrors.
func TestTargetsOfOneName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	double, squared, kept := To[number, number]("double").As("x"), To[number, square]("square").As("x"), toDouble.KeepErrors()
	stages := []func(context.Context, *numberStage) error{
		func(_ context.Context, s *numberStage) error {
			for _, item := range s.Items() {
				switch item.State.N = item.In.N; item.In.N {
				case 0:
					double.Ask(item, number{5})
				case 1:
					squared.Ask(item, number{5})
				case 2:
					double.Ask(item, number{5})
					squared.Ask(item, number{5})
				case 3:
					kept.Ask(item, number{13})
				default:
					toDouble.Ask(item, number{13})
				}
			}
			return nil
		},
		func(_ context.Context, s *numberStage) error {
			for _, item := range s.Items() {
				switch item.State.N {
				case 0:
					item.Reply(square{double.Answer(item).N})
				case 1:
					item.Reply(square{squared.Answer(item).Square})
				case 3:
					item.Fail("kept", "%s", kept.Err(item).Code)
				default:
					item.Reply(square{-1})
				}
			}
			return nil
		},
	}
	svc := b.service()
	check(t, HandleFlow(svc, "flow", stages))
	b.run(svc)
	w := b.reply("flow", numbers(5))
	for i, want := range []string{`{"square":10}`, `{"square":25}`} {
		if string(w.slots[i].Data) != want {
			t.Errorf("slot %d is %s %v, want %s", i, w.slots[i].Data, w.slots[i].Err, want)
		}
	}
	for i, code := range map[int]string{2: CodeBadQuery, 3: "kept", 4: "unlucky"} {
		if e := w.slots[i].Err; e == nil || e.Code != code {
			t.Errorf("slot %d: %s %v, want %s", i, w.slots[i].Data, e, code)
		}
	}
}

// TestAStageThatAsksInAnotherOrderMakesTheSameRequests repeats a stage whose items ask from goroutines, of one target
// before the other by chance.
func TestAStageThatAsksInAnotherOrderMakesTheSameRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var times atomic.Int64
	stages := twoStages(true)
	stages[0] = func(_ context.Context, s *numberStage) error {
		forth := times.Add(1)%2 == 0
		for n := range s.Items() {
			item := s.Items()[n]
			if !forth {
				item = s.Items()[len(s.Items())-1-n]
				toSquare.Ask(item, item.In)
			}
			toDouble.Ask(item, item.In)
			if forth {
				toSquare.Ask(item, item.In)
			}
		}
		return nil
	}
	svc := b.service()
	check(t, HandleFlow(svc, "flow", stages))
	b.run(svc)
	check(t, EnsureConsumer(b.ctx, b.js, "double", ConsumerSettings{}))
	builder := NewRequestBuilder("flow", newMeta(), 1<<20)
	for i := range 20 {
		builder.Add(i, "k", fmt.Appendf(nil, `{"n":%d}`, i))
	}
	var bodies [2][2]string
	for n := range bodies {
		msg := builder.Msg()
		msg.Header.Set(HeaderMsgID, fmt.Sprint("again", n))
		heard := map[string]string{}
		sub, err := b.nc.SubscribeSync(workPrefix + ">")
		check(t, err)
		b.publish(msg)
		for len(heard) < 2 {
			msg, err := sub.NextMsg(patience)
			check(t, err)
			if msg.Header.Get(HeaderStack) != "" {
				heard[msg.Header.Get(HeaderReplyTo)] = string(msg.Data)
			}
		}
		check(t, sub.Unsubscribe())
		bodies[n] = [2]string{heard["tranche.stage.flow.1.0.double"], heard["tranche.stage.flow.1.1.square"]}
	}
	if bodies[0] != bodies[1] || bodies[0][0] == "" || bodies[0][1] == "" {
		t.Errorf("the requests are\n%s\nand then\n%s", bodies[0], bodies[1])
	}
}
