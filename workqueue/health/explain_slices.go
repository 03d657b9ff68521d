package health

import (
	"fmt"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// sliceGroup explains items that live slices hold.
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

// claimedGroup explains slices whose requests a node is making.
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
		g.Reason, g.Why = ReasonClaimLost, name+" had claimed them and is gone"
		f.swept(g, "they are reissued, which does not count against them")
	case s.late && st.kind.Fetched():
		g.Reason, g.Why, g.Since = ReasonOverdue, node.Name()+" had no results of them by the deadline", s.firstDeadline
		f.swept(g, "that counts as a failure of theirs: they are retried, halved, or failed as deadline")
	case st.kind.Fetched():
		f.fetching(st, s, node, g)
	case s.late:
		g.Reason, g.Why = ReasonClaimLost, node.Name()+" claimed them and did not publish them in time"
		f.swept(g, "they are reissued, which does not count against them")
	case f.unwritable(st.kind, g):
	default:
		g.Reason, g.Owner, g.Who = ReasonPublishing, OwnerNode, node.Name()
		g.Why = "it has claimed them and is publishing their requests"
		g.Next = "the requests are in the stream in a moment; if not, they are reissued"
		g.When = s.lastDeadline
		if node.Away {
			f.natsUnreachable(g, []*Node{node})
			g.Next = "it publishes them when NATS answers; what it cannot publish by its deadline is reissued"
			g.When = s.lastDeadline
		}
	}
}

// sentGroup explains slices whose requests are, or were, in the stream.
func (f *facts) sentGroup(s *sliceFacts, g *MissingGroup) {
	g.Since = s.firstSent
	if s.lastSent != nil {
		g.Last = &LastEvent{*s.lastSent, "their request was published"}
	}
	switch {
	case s.lost:
		g.Reason, g.Why = ReasonStreamLost, "the streams that carried their requests, or the replies, are gone"
		f.swept(g, "they are reissued at once, which does not count against them")
		return
	case len(f.alive) > 0 && f.unwritable(workqueue.KindEndpoint, g):
		return
	case s.late && s.handed:
		g.Reason, g.Why, g.Since = ReasonOverdue, "no reply came before the deadline", s.firstDeadline
		f.swept(g, "that counts as a failure of theirs: they are retried, halved, or failed as deadline")
		return
	case !s.handed:
		g.Reason, g.Owner, g.Who = ReasonQueued, OwnerService, servers(s.endpoint)
		g.Why = "as far as is known no service has taken them"
		g.Next = "a service takes them; at the deadline a node looks whether they are still in the stream"
		g.When = s.firstDeadline
		if len(f.alive) == 0 {
			g.Next = "a service takes them; the replies are recorded when a node is there again"
		}
		return
	}
	g.Reason, g.Owner, g.Who, g.Since = ReasonWorking, OwnerService, servers(s.endpoint), s.firstHanded
	if s.lastHanded != nil {
		g.Last = &LastEvent{*s.lastHanded, "a service took their request"}
	}
	g.Why = "a service has taken them"
	g.Next, g.When = "the service answers; without a reply by the deadline they are retried", s.firstDeadline
	if s.partly {
		g.Reason = ReasonPartly
		g.Why = fmt.Sprintf("a service has taken them and answered %s of the same requests", manyItems(s.answered))
		if s.final {
			g.Why += "; the last message of the reply has come and another one is missing"
			g.Next = "the missing message comes; without it by the deadline they are retried"
		}
	}
	if s.refused != "" {
		g.Reason, g.Last = ReasonQuarantine, &LastEvent{*s.refusedAt, "a reply could not be taken: " + s.refused}
		g.by = []cameBy{{"a reply could not be taken: " + s.refused, g.Items}}
		g.Advice = []Advice{{"see what the service sent",
			fmt.Sprintf("tranche quarantine list --run %s", s.run)}}
	}
	if len(f.alive) == 0 {
		g.Next = "the service answers, and the reply waits in the stream"
		owner, who := g.Owner, g.Who
		f.noNode(g)
		if owner == OwnerService {
			g.Who += ", and " + who
		}
	}
}

// causeText says why slices were made, for those whose time to be retried comes.
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
		workqueue.CauseFailure:    "the service failed their request as a whole",
		workqueue.CauseUnreadable: "the service's reply could not be read",
		workqueue.CauseDeadline:   "no reply came in time",
		workqueue.CauseSilence: "no reply came in time, which does not count against them: nothing says that they are to " +
			"blame",
		workqueue.CauseSession:   "the node that had claimed them is gone",
		workqueue.CauseHandBack:  "the node that had claimed them stopped in good order",
		workqueue.CauseStreams:   "a stream was lost, and their request or its reply with it",
		workqueue.CauseLost:      "their request was acknowledged, and the stream has lost the reply",
		workqueue.CauseBisect:    "they are a half of a request that failed as a whole, to find what is wrong in it",
		workqueue.CauseExhausted: "their request was delivered too many times without an answer, and was cut in pieces",
		workqueue.CauseBreaker: "their request failed while the endpoint was known to be down, which does not count " +
			"against them",
		workqueue.CauseThrottled: "the service said it has too much to do, which does not count against them",
		workqueue.CauseProbe:     "they are a probe of an endpoint that was down",
		workqueue.CauseSplit:     "their request would have been larger than a message may be, and was cut in pieces",
	}
}

// scheduledGroup explains slices that wait for their time, or for a node once it has come.
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

// pausing explains slices whose time has not come.
func (f *facts) pausing(st *stepFacts, s *sliceFacts, g *MissingGroup) {
	due := s.firstDue
	g.Owner, g.When, g.until = OwnerTimer, &due, s.lastDue
	g.Reason, g.Who, g.Next = ReasonBackoff, "the pause before the next try", "they are claimed and sent again"
	switch {
	case s.postponed():
		g.Reason, g.Who = ReasonPostponed, "the pause after a request that could not be published"
		g.Next = "a node claims them and publishes again"
		g.Advice = []Advice{{"see whether NATS is well and the endpoint may be published to",
			"tranche endpoints explain " + g.Endpoint}}
		if st.kind.Fetched() {
			g.Who, g.Next = "the pause after a node could not work on them", "a node claims them and tries again"
			g.Advice = []Advice{{"see who does this work", "tranche endpoints show " + g.Endpoint}}
		}
	case s.cause == workqueue.CauseBreaker:
		g.Reason, g.Who = ReasonBreather, "the pause for an endpoint that is down"
	case s.cause == workqueue.CauseThrottled:
		g.Reason, g.Who = ReasonThrottled, "the pause for a service that has too much to do"
		g.Advice = []Advice{{"see at what pace the endpoint is asked", "tranche endpoints show " + g.Endpoint}}
	case s.maxFailures > 0 && s.maxFailures+1 >= st.maxAttempts:
		g.Next = "they are claimed and sent for the last time: an item that fails again has failed, a request of several " +
			"that fails as a whole is halved"
	}
}

// postponed reports whether the slices wait because their requests could not be published.
func (s *sliceFacts) postponed() bool {
	return s.unsent != "" || s.cause == workqueue.CauseReady
}

// why says why slices are to be sent again.
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
