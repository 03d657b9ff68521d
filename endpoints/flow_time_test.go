package endpoints

import (
	"context"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// waitsInTheEnd asks once, and then answers one item and outlasts its time.
func waitsInTheEnd() numberStages {
	return numberStages{
		perItem(func(item *numberItem) { toDouble.Ask(item, item.In) }),
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
	svc := b.service()
	check(t, HandleFlow(svc, "flow", waitsInTheEnd()))
	svc.endpoints[0].Settings.Timeout = time.Second // of its stages only
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
	asked, err := b.nc.SubscribeSync(wire.WorkSubject("double"))
	check(t, err)
	serveFlow(b, "flow", waitsInTheEnd(), Timeout(2*time.Second))
	b.ask("flow", numbers(3))
	_, err = asked.NextMsg(patience)
	check(t, err)
	b.nothingLeft()
	if replies := b.drainReplies(); len(replies) > 0 {
		t.Errorf("%d replies", len(replies))
	}
}
