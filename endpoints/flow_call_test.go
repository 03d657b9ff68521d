package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

func TestFlowsAnswerCallers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	serveFlow(b, "flow", threeStages())
	nc := b.connect()
	for name, opts := range map[string][]CallOption{"JetStream": nil, "core NATS": {Direct()}} {
		if name != "JetStream" { // nobody keeps a direct request until there is a listener
			eventually(t, "somebody listens", func() bool {
				var none *NoListenersError
				_, err := Call[number, square](b.ctx, nc, "flow", "K", number{0}, opts...)
				return !errors.As(err, &none)
			})
		}
		got, err := Call[number, square](b.ctx, nc, "flow", "K", number{5}, opts...)
		if err != nil || got.Square != 100 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
		var slot *wire.SlotError
		if _, err := Call[number, square](b.ctx, nc, "flow", "K", number{13}, opts...); !errors.As(err, &slot) ||
			slot.Code != "unlucky" {
			t.Errorf("%s: %v", name, err)
		}
		var items []CallItem[number]
		for i := range 30 {
			items = append(items, CallItem[number]{Key: fmt.Sprint(i), In: number{i}})
		}
		results, err := CallList[number, square](b.ctx, nc, "flow", items, opts...)
		check(t, err)
		for i, result := range results {
			if i != 13 && (result.Err != nil || result.Out.Square != 4*i*i) {
				t.Errorf("%s: item %d: %+v", name, i, result)
			}
		}
	}
	if n := b.left(wire.StreamDead); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func TestAFailedLaterStageOfASingleRequestIsTold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	stages := threeStages()
	stages[1] = func(context.Context, *numberStage) error { return Fail("broken", "for good") }
	serveFlow(b, "flow", stages)
	var slot *wire.SlotError
	if _, err := Call[number, square](b.ctx, b.connect(), "flow", "K", number{5}); !errors.As(err, &slot) ||
		slot.Code != "broken" {
		t.Errorf("got %v", err)
	}
}

func TestWrappersSeeEachStage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	var mu sync.Mutex
	var seen []string
	traced := wire.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	serveFlow(b, "flow", joined(), Wrap(
		func(ctx context.Context, w *Work, next func(context.Context) error) error {
			before := len(w.Items())
			w.Hold()
			w.SetTrace(traced.Parent, "")
			err := next(ctx)
			slots, answersErr := w.Answers()
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("stage %d: %d items, %d answered, %d go on", w.Stage(), before, len(slots),
				len(w.GoingOn())))
			if wire.TraceOfHeader(w.Header()) != traced && w.Stage() > 0 {
				t.Errorf("stage %d has trace %+v", w.Stage(), wire.TraceOfHeader(w.Header()))
			}
			return errors.Join(err, answersErr)
		}))
	checkJoined(t, "wrapped", b.reply("flow", numbers(30)), 30)
	mu.Lock()
	defer mu.Unlock()
	want := []string{"stage 0: 30 items, 6 answered, 24 go on", "stage 1: 23 items, 4 answered, 19 go on",
		"stage 2: 19 items, 19 answered, 0 go on"}
	if !slices.Equal(seen, want) {
		t.Errorf("wrappers saw %q", seen)
	}
}

func TestAWrapperThatFailsHasNothingAsked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	serveFlow(b, "flow", joined(), Wrap(
		func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.Hold()
			return errors.Join(next(ctx), Retry("rolled_back", "no commit"))
		}))
	w := b.reply("flow", numbers(30))
	if w.answered != 0 || w.failure == nil || w.failure.Code != "rolled_back" || b.left(wire.StreamFlow) != 0 {
		t.Errorf("answered %d, failure %v, %d messages of state", w.answered, w.failure, b.left(wire.StreamFlow))
	}
}

func TestAFullFlowStreamHoldsChunksUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	_, err := stream.Ensure(b.ctx, b.js, stream.Config{FlowMaxBytes: 64 << 10}) // for about two states
	check(t, err)
	svc := b.service()
	check(t, HandleFlow(svc, "flow", threeStagesOf(func(item *numberItem) {
		item.State.Trail = make([]int, 100)
	})))
	svc.endpoints[0].flow.Patience = 500 * time.Millisecond
	b.Run(svc)
	for range 8 {
		b.ask("flow", numbers(100))
	}
	for _, w := range b.collect(8) {
		if w.failure == nil && w.answered != 100 ||
			w.failure != nil && (w.failure.Code != wire.CodeFlowFull || !w.failure.Retry || w.answered > 1) {
			t.Errorf("answered %d, failure %v", w.answered, w.failure)
		}
	}
	b.nothingLeft()
	b.ask("flow", numbers(100))
	for _, w := range b.collect(1) {
		if w.failure != nil {
			t.Errorf("with room again: %v", w.failure)
		}
	}
}

// threeStagesOf is threeStages with something done to each item before it asks.
func threeStagesOf(
	change func(*numberItem),
) numberStages {
	stages := threeStagesOfAny()
	first := stages[0]
	stages[0] = func(ctx context.Context, s *numberStage) error {
		for _, item := range s.Items() {
			change(item)
		}
		return first(ctx, s)
	}
	return stages
}
