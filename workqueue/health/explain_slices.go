package health

import (
	"fmt"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

func (f *facts) sliceGroup(r *runFacts, s *sliceFacts) MissingGroup {
	st := f.steps[stepKey{s.run, s.step}]
	g := f.group(r, st, s.endpoint, s.state, s.held)
	g.Slices, g.session = s.slices, s.session
	if s.partly {
		g.Answered = s.answered
	}
	switch s.state {
	case "scheduled":
		f.scheduledGroup(r, st, s, &g)
	case "claimed":
		f.claimedGroup(st, s, &g)
	default:
		f.sentGroup(s, &g)
	}
	f.withoutQuorum(st, &g)
	f.refusedByNATS(st, &g)
	return g
}

func (f *facts) claimedGroup(st *stepFacts, s *sliceFacts, g *MissingGroup) {
	since, ttl := s.firstAt, dispatch.DefaultClaimTTL
	if st.kind.Fetched() {
		ttl += st.timeout
	}
	if s.firstDeadline != nil {
		if at := s.firstDeadline.Add(-ttl); at.After(since) {
			since = at
		}
	}
	g.Since = &since
	g.Last = &LastEvent{since, "a node claimed them"}
	node := f.sessions[s.session]
	switch {
	case node == nil || !node.Alive:
		name := "a node"
		if node != nil {
			name = node.Name()
			g.Last = &LastEvent{node.gone(), "the session of " + name + " ended"}
		}
		f.swept(g, ReasonClaimLost, Row{"node": name})
	case s.late && st.kind.Fetched():
		g.Since = s.firstDeadline
		f.swept(g, ReasonOverdue, Row{"node": node.Name()})
	case st.kind.Fetched():
		f.fetching(st, node, g)
		g.When = s.lastDeadline
	case s.late:
		f.swept(g, ReasonClaimLost, Row{"node": node.Name(), "late": true})
	case f.unwritable(st.kind, g):
	default:
		f.say(g, ReasonPublishing, Row{"node": node.Name()})
		if node.Away {
			f.natsUnreachable(g, []*Node{node})
			g.Next = "it publishes them when NATS answers; what it cannot publish by its deadline is reissued"
		}
		g.When = s.lastDeadline
	}
}

func (f *facts) fetching(st *stepFacts, node *Node, g *MissingGroup) {
	f.say(g, ReasonFetching, Row{"case": string(st.kind), "node": node.Name()})
	if st.kind == workqueue.KindDirect && node.Away {
		f.natsUnreachable(g, []*Node{node})
	}
}

func (f *facts) sentGroup(s *sliceFacts, g *MissingGroup) {
	g.Since = s.firstSent
	if s.lastSent != nil {
		g.Last = &LastEvent{*s.lastSent, "their request was published"}
	}
	nodeless := len(f.alive) == 0
	switch {
	case s.lost:
		f.swept(g, ReasonStreamLost, nil)
		return
	case !nodeless && f.unwritable(workqueue.KindEndpoint, g):
		return
	case s.late && s.handed:
		g.Since = s.firstDeadline
		f.swept(g, ReasonOverdue, nil)
		return
	case !s.handed:
		f.say(g, ReasonQueued, Row{"nodeless": nodeless})
		g.When = s.firstDeadline
		return
	}
	reason := ReasonWorking
	if s.partly {
		reason = ReasonPartly
	}
	f.say(g, reason, Row{"answered": s.answered, "final": s.final})
	g.Since, g.When = s.firstHanded, s.firstDeadline
	if s.lastHanded != nil {
		g.Last = &LastEvent{*s.lastHanded, "a service took their request"}
	}
	if s.refused != "" {
		taken := *g
		f.say(g, ReasonQuarantine, nil)
		g.Owner, g.Who, g.Why, g.Next, g.When = taken.Owner, taken.Who, taken.Why, taken.Next, taken.When
		g.Last = &LastEvent{*s.refusedAt, "a reply was quarantined: " + s.refused}
		g.by = []cameBy{{g.Last.What, g.Items}}
	}
	if nodeless {
		g.Next = "the service answers, and the reply waits in the stream"
		who := g.Who
		f.noNode(g)
		g.Who += ", and " + who
	}
}

func causeText(c workqueue.Cause) string {
	if text, ok := causeTexts()[c]; ok {
		return text
	}
	return "they were cut from what was ready"
}

func causeTexts() map[workqueue.Cause]string {
	return map[workqueue.Cause]string{
		workqueue.CauseRetry:      "the service asked for them to be retried",
		workqueue.CauseUnanswered: "the service's reply left them out",
		workqueue.CauseFailure:    "the service failed their entire request",
		workqueue.CauseUnreadable: "the service's reply was unreadable",
		workqueue.CauseDeadline:   "no reply came before the deadline",
		workqueue.CauseSilence: "no reply came before the deadline, which does not count against them: nothing shows that " +
			"they are to blame",
		workqueue.CauseSession:   "the node that had claimed them is gone",
		workqueue.CauseHandBack:  "the node that had claimed them stopped cleanly",
		workqueue.CauseStreams:   "a stream was lost, and their request or its reply with it",
		workqueue.CauseLost:      "their request was acknowledged, and the stream lost the reply",
		workqueue.CauseRerouted:  "no service had received their request when requests began to go to another endpoint",
		workqueue.CauseBisect:    "they are half of a request that failed entirely, to find the culprit",
		workqueue.CauseExhausted: "their request was delivered too many times without an answer, and was cut in pieces",
		workqueue.CauseBreaker: "their request failed while the endpoint was known to be down, which does not count " +
			"against them",
		workqueue.CauseThrottled: "the service said it is overloaded, which does not count against them",
		workqueue.CauseProbe:     "they are a probe of an endpoint that was down",
		workqueue.CauseSplit:     "their request would have been larger than a message may be, and was cut in pieces",
	}
}

func (f *facts) scheduledGroup(r *runFacts, st *stepFacts, s *sliceFacts, g *MissingGroup) {
	since := s.firstAt
	g.Since, g.Last = &since, &LastEvent{s.lastAt, causeText(s.cause)}
	if s.before != nil {
		g.Last = s.before
	}
	g.by = []cameBy{{s.why(st), g.Items}}
	e := f.endpointOf(g.Endpoint)
	switch {
	case r.hold != "":
		f.holdGroup(r, g)
	case len(f.alive) == 0:
		f.noNode(g)
	case f.unwritable(st.kind, g):
	case e.open:
		f.breakerGroup(st, e, g)
	case s.due:
		f.claimable(r, st, g)
		g.Why = "their time has come, and " + g.Why
	default:
		f.pausing(st, s, g)
	}
}

func (f *facts) pausing(st *stepFacts, s *sliceFacts, g *MissingGroup) {
	switch {
	case s.postponed() && st.kind.Fetched():
		g.Say(ReasonPostponed, Row{"case": "fetched"})
	case s.postponed():
		g.Say(ReasonPostponed, nil)
	case s.cause == workqueue.CauseBreaker:
		g.Say(ReasonBreather, nil)
	case s.cause == workqueue.CauseThrottled:
		g.Say(ReasonThrottled, nil)
	default:
		g.Say(ReasonBackoff, Row{"last": s.maxFailures > 0 && s.maxFailures+1 >= st.maxAttempts})
	}
	due := s.firstDue
	g.When, g.until = &due, s.lastDue
}

// postponed reports whether the slices wait because their requests could not be published.
func (s *sliceFacts) postponed() bool {
	return s.unsent != "" || s.cause == workqueue.CauseReady
}

func (s *sliceFacts) why(st *stepFacts) string {
	switch {
	case s.unsent != "" && st.kind.Fetched():
		return "their node could not work on them: " + s.unsent
	case s.unsent != "":
		return "their request could not be published: " + s.unsent
	case s.postponed():
		return "their request could not be published"
	case s.maxFailures > 0 && s.cause != workqueue.CauseBreaker && s.cause != workqueue.CauseThrottled &&
		s.cause != workqueue.CauseSilence:
		return fmt.Sprintf("%s; that was failure %d of at most %d", causeText(s.cause), s.maxFailures, st.maxAttempts)
	default:
		return causeText(s.cause)
	}
}
