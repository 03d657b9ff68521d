package explain

import (
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Stalled is what a node says of streams that do not answer although its connection stands.
type Stalled struct {
	Since *time.Time // nil: they answer
	Why   string
}

// stalled returns since when the streams have not answered any node that reaches NATS, or nil when they answer one.
func (f *facts) stalled() (first *Stalled) {
	for _, s := range f.alive {
		switch {
		case s.away:
		case s.stalled.Since == nil:
			return nil
		case first == nil || s.stalled.Since.Before(*first.Since):
			first = &s.stalled
		}
	}
	return first
}

// withoutQuorum makes a group wait for NATS, if that is what it waits for whoever's turn it would be otherwise: while
// the streams do not answer, neither nodes nor services can do anything about items that go through them.
func (f *facts) withoutQuorum(st *stepFacts, g *MissingGroup) {
	stalled := f.stalled()
	turn := []Owner{OwnerNode, OwnerService}
	if stalled == nil || st.kind != workqueue.KindEndpoint || !slices.Contains(turn, g.Owner) &&
		g.Reason != ReasonPostponed {
		return
	}
	g.Reason, g.Owner, g.Who, g.When = ReasonNATSStalled, OwnerNATS, "the NATS servers", nil
	g.Since, g.by = stalled.Since, nil
	g.Why = StalledText(stalled.Why)
	g.Next = "they go on within seconds of the servers having elected leaders; what is in the streams stays there"
	g.Advice = []Advice{QuorumAdvice()}
}

// StalledText says of streams that do not answer what that means; why is what a node was told of them.
func StalledText(why string) string {
	return fmt.Sprintf("NATS can be reached, and JetStream does not answer (%s): more than half of the servers that keep "+
		"its streams are away, or they have no leader yet", why)
}

// QuorumAdvice is what an operator could do while JetStream has no quorum.
func QuorumAdvice() Advice {
	return Advice{Do: "see that more than half of the NATS servers run and reach each other; nothing has to be " +
		"done here then"}
}
