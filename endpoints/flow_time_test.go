package endpoints

import (
	"context"
	"testing"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// waitsInTheEnd asks once, and then answers one item and outlasts its time.
func waitsInTheEnd() []func(context.Context, *numberStage) error {
	return []func(context.Context, *numberStage) error{
		func(_ context.Context, s *numberStage) error {
			for _, item := range s.Items() {
				toDouble.Ask(item, item.In)
			}
			return nil
		},
		func(ctx context.Context, s *numberStage) error {
			s.Items()[0].Reply(square{1})
			<-ctx.Done()
			return ctx.Err()
		},
	}
}

func TestAStageThatOutlastsItsTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	b.listening("double") // what the flow asks lives as long as its time
	svc := b.service()
	check(t, HandleFlow(svc, "flow", waitsInTheEnd(), Timeout(outlastsStalls)))
	b.Run(svc)
	w := b.reply("flow", numbers(3))
	if w.answered != 1 || w.slots[0].Err != nil || w.failure == nil || w.failure.Code != wire.CodeTimeout ||
		!w.failure.Retry {
		t.Errorf("answered %d, slots %v, failure %v", w.answered, w.slots, w.failure)
	}
	b.nothingLeft()
}

// Nobody serves the endpoint that a flow asks. What the flow has stored and asked goes when its time is over, and
// nothing is said to the node: the slice's deadline brings the items back.
func TestAFlowThatIsNotAnsweredInTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleFlow(svc, "flow", waitsInTheEnd(), Timeout(outlastsStalls)))
	b.Run(svc)
	b.ask("flow", numbers(3))
	eventually(t, "the chunk is suspended", func() bool {
		return b.left(wire.StreamFlow) > 0 &&
			b.left(wire.StreamWork) == 1
	})
	b.nothingLeft()
	if replies := b.drainReplies(); len(replies) > 0 {
		t.Errorf("%d replies", len(replies))
	}
}
