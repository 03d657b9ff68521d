package explain

import (
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// targetText is what is asked, in words.
func targetText(key string) string {
	switch kind, target := workqueue.TargetKind(key); kind {
	case workqueue.KindHTTP:
		return "HTTP service " + target
	case workqueue.KindSQL:
		return "source " + target
	case workqueue.KindLocal:
		return "local function " + target
	default:
		return "endpoint " + target
	}
}

// servers is who answers for a target.
func servers(key string) string {
	switch kind, target := workqueue.TargetKind(key); kind {
	case workqueue.KindHTTP:
		return "HTTP service " + target
	case workqueue.KindSQL:
		return "the database of source " + target
	case workqueue.KindLocal:
		return "the nodes that have local function " + target
	default:
		return "the services of endpoint " + target
	}
}

// fetching explains slices that a node is at itself.
func (f *facts) fetching(st *stepFacts, s *sliceFacts, node *sessionFacts, g *MissingGroup) {
	g.Reason, g.Owner, g.Who, g.When = ReasonFetching, OwnerNode, node.name(), s.lastDeadline
	switch st.kind {
	case workqueue.KindRequest:
		g.Owner, g.Who = OwnerService, servers(s.endpoint)
		g.Why = node.name() + " has asked for them in plain requests"
	case workqueue.KindLocal:
		g.Why = fmt.Sprintf("%s is running %s on them", node.name(), targetText(s.endpoint))
	default:
		g.Why = fmt.Sprintf("%s is asking %s for them", node.name(), targetText(s.endpoint))
	}
	g.Next = "what comes is recorded; what has not come by the deadline is tried again"
	if st.kind == workqueue.KindRequest && node.away {
		f.natsAway(g, []*sessionFacts{node})
		g.When = s.lastDeadline
	}
}

// someNodeHas reports whether a node that is alive has a local function. One that has not said yet may have it.
func (f *facts) someNodeHas(key string) bool {
	_, function := workqueue.TargetKind(key)
	return slices.ContainsFunc(f.alive, func(s *sessionFacts) bool {
		return s.locals == nil || slices.Contains(*s.locals, function)
	})
}

// noLocal explains items of a step whose function no node has.
func (f *facts) noLocal(st *stepFacts, g *MissingGroup) {
	_, function := workqueue.TargetKind(st.endpoint)
	g.Reason, g.Owner, g.Who, g.When = ReasonNoLocal, OwnerOperator, "whoever runs the program that has "+function, nil
	g.Why = "no node here has local function " + function
	g.Next = "the first node that has it claims them at once"
	g.Advice = []Advice{{"start a program that embeds a node with this function; it is there when this names a node",
		"tranche endpoints show " + st.endpoint}}
}

// unplacedGroup explains items of an open run whose block is not there yet.
func (f *facts) unplacedGroup(r *runFacts) MissingGroup {
	g := MissingGroup{run: r.id, State: "waiting", Items: r.unplaced, Counted: r.unplaced, Since: &r.createdAt}
	g.Reason, g.Owner, g.Who, g.When = ReasonUnplaced, OwnerOperator, "whoever adds items to the run", r.sealBy
	g.Why = "the run is open, and items begin when 8192 of them have come or the run is sealed"
	g.Next = "they begin when more items fill their block, or when the run is sealed"
	switch {
	case r.overdueAt != nil:
		g.Next, g.When = g.Next+"; it should have been by "+clock(*r.sealBy), nil
	case r.sealBy != nil:
		g.Next += "; it should be by"
	}
	g.Advice = []Advice{sealAdvice(r.id)}
	return g
}

func sealAdvice(run workqueue.RunID) Advice {
	return Advice{"say that no more items come", "tranche run seal " + run.String()}
}

// openNote says until when a run takes items.
func (r *runFacts) openNote() string {
	note := "the run is open: it takes items, and does not end before it is sealed"
	switch {
	case r.overdueAt != nil:
		note = fmt.Sprintf("%s; it should have been by %s, which was reported at %s: `tranche run seal %s`, or cancel it",
			note, clock(*r.sealBy), clock(*r.overdueAt), r.id)
		if r.onOverdue == string(start.OverdueReport) {
			note += fmt.Sprintf("; it is cancelled when nobody does anything with it, nor works on its items, for %d days",
				start.AbandonedAfter/(24*time.Hour))
		}
		return note
	case r.sealBy != nil:
		return fmt.Sprintf("%s, by %s (then: %s)", note, clock(*r.sealBy), r.onOverdue)
	default:
		return note
	}
}
