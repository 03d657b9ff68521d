package health

import (
	"slices"

	"github.com/tranchehq/tranche/workqueue/explain"
	"github.com/tranchehq/tranche/workqueue/health"
)

// quorum tells of streams that do not answer any node that reaches NATS.
func (f *facts) quorum() []Condition {
	stalled := f.stalled()
	if stalled == nil {
		return nil
	}
	return []Condition{unkept(dated(*stalled.StalledSince, Condition{ // nodes that start anew know only since then
		Kind: NATS, Severity: Critical, Subject: jetStream, Title: "JetStream does not answer", Link: "/nodes",
		Detail: "Nothing is sent and recorded until it does. " + explain.StalledText(stalled.StalledWhy) + ".",
		Remedy: "See that more than half of the NATS servers run and reach each other; nothing has to be done here then",
	}))}
}

// jetStream is the subject of a condition of NATS that is about all nodes.
const jetStream = "JetStream"

// stalled returns the node that the streams have not answered for longest, or nil when they answer some node.
func (f *facts) stalled() (first *health.NodeHealth) {
	for i := range f.db.Nodes {
		n := &f.db.Nodes[i]
		switch {
		case !n.Alive || n.Away:
		case n.StalledSince == nil:
			return nil
		case first == nil || n.StalledSince.Before(*first.StalledSince):
			first = n
		}
	}
	return first
}

// answered reports whether the streams answer a node that would know by now if they did not.
func (f *facts) answered() bool {
	return slices.ContainsFunc(f.db.Nodes, func(n health.NodeHealth) bool {
		return n.Alive && !n.Away && n.StalledSince == nil && f.at.Sub(n.StartedAt) > settledAfter
	})
}
