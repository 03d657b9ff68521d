package endpoints

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// TestTargetsOfOneName has a package mix up the names of its targets, and ask with and without KeepErrors.
func TestTargetsOfOneName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	double, squared := To[number, number]("double").As("x"), To[number, square]("square").As("x")
	kept := toDouble.KeepErrors()
	stages := numberStages{
		perItem(func(item *numberItem) {
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
		}),
		perItem(func(item *numberItem) {
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
		}),
	}
	serveFlow(b, "flow", stages)
	w := b.reply("flow", numbers(5))
	w.holds(t, "targets", "", map[int]string{0: `{"square":10}`, 1: `{"square":25}`, 2: wire.CodeBadQuery, 3: "kept",
		4: "unlucky"})
}

// TestAStageThatAsksInAnotherOrderMakesTheSameRequests repeats a stage whose items are asked for in another order, and
// of another target first.
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
	serveFlow(b, "flow", stages)
	check(t, stream.EnsureConsumer(b.ctx, b.js, "double", stream.ConsumerSettings{}))
	builder := wire.NewRequestBuilder("flow", newMeta(), 1<<20)
	for i := range 20 {
		builder.Add(i, "k", fmt.Appendf(nil, `{"n":%d}`, i))
	}
	var bodies [2][2]string
	for n := range bodies {
		msg := builder.Msg()
		msg.Header.Set(wire.HeaderMsgID, fmt.Sprint("again", n))
		heard := map[string]string{}
		sub, err := b.nc.SubscribeSync(wire.WorkPrefix + ">")
		check(t, err)
		b.publish(msg)
		for len(heard) < 2 {
			msg, err := sub.NextMsg(patience)
			check(t, err)
			if msg.Header.Get(wire.HeaderStack) != "" {
				heard[msg.Header.Get(wire.HeaderReplyTo)] = string(msg.Data)
			}
		}
		check(t, sub.Unsubscribe())
		bodies[n] = [2]string{heard["tranche.stage.flow.1.0.double"], heard["tranche.stage.flow.1.1.square"]}
	}
	if bodies[0] != bodies[1] || bodies[0][0] == "" || bodies[0][1] == "" {
		t.Errorf("the requests are\n%s\nand then\n%s", bodies[0], bodies[1])
	}
}

// TestItemsThatOutliveTheirStage hands the items of a stage to goroutines that continue after it has returned, and keeps
// them for the next stage.
func TestItemsThatOutliveTheirStage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	var late sync.WaitGroup
	var mu sync.Mutex
	kept := map[int]*numberItem{}
	loose := func(s *numberStage, item *numberItem, until <-chan struct{}) {
		late.Go(func() {
			for over := false; !over; {
				select {
				case <-until:
					over = true
				default:
				}
				toDouble.Ask(item, number{item.Ordinal})
				toDouble.Asked(item)
				item.Next()
				s.Flush()
				runtime.Gosched()
			}
			item.Reply(square{-1})
			item.Fail("late", "late")
		})
	}
	answered := make(chan struct{})
	end := sync.OnceFunc(func() { close(answered) })
	t.Cleanup(func() { end(); late.Wait() })
	stages := numberStages{
		func(_ context.Context, s *numberStage) error {
			for _, item := range s.Items() {
				toDouble.Ask(item, item.In)
				mu.Lock()
				kept[item.Ordinal] = item
				mu.Unlock()
				loose(s, item, answered)
			}
			return nil
		},
		perItem(func(item *numberItem) {
			mu.Lock()
			old := kept[item.Ordinal]
			mu.Unlock()
			old.Reply(square{-2})
			item.Reply(square{toDouble.Answer(item).N})
		}),
	}
	serveFlow(b, "flow", stages)
	w := b.reply("flow", numbers(5))
	end()
	late.Wait()
	w.holds(t, "late", "", map[int]string{0: `{"square":0}`, 1: `{"square":2}`, 2: `{"square":4}`, 3: `{"square":6}`,
		4: `{"square":8}`})
	if left := b.drainReplies(); len(left) > 0 {
		t.Errorf("%d further replies", len(left))
	}
}
