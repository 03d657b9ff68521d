package explain

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
	g.Last = &Happening{since, "a node claimed them"}
	node := f.sessions[s.session]
	switch {
	case node == nil || !node.alive:
		name := "a node"
		if node != nil {
			name = node.name()
			at := node.expiresAt
			if node.endedAt != nil {
				at = *node.endedAt
			}
			g.Last = &Happening{at, "the session of " + name + " ended"}
		}
		g.Reason, g.Why = ReasonClaimLost, name+" had claimed them and is gone"
		f.swept(g, "they are issued again, which does not count against them")
	case s.late && st.kind.Fetched():
		g.Reason, g.Why, g.Since = ReasonOverdue, node.name()+" had no results of them by the deadline", s.firstDeadline
		f.swept(g, "that counts as a failure of theirs: they are tried again, halved, or failed as deadline")
	case st.kind.Fetched():
		f.fetching(st, s, node, g)
	case s.late:
		g.Reason, g.Why = ReasonClaimLost, node.name()+" claimed them and did not publish them in time"
		f.swept(g, "they are issued again, which does not count against them")
	case f.unwritable(st.kind, g):
	default:
		g.Reason, g.Owner, g.Who = ReasonPublishing, OwnerNode, node.name()
		g.Why = "it has claimed them and is publishing their requests"
		g.Next = "the requests are in the stream in a moment; if not, they are issued again"
		g.When = s.lastDeadline
		if node.away {
			f.natsAway(g, []*sessionFacts{node})
			g.Next = "it publishes them when NATS answers; what it cannot publish by its deadline is issued again"
			g.When = s.lastDeadline
		}
	}
}

// sentGroup explains slices whose requests are, or were, in the stream.
func (f *facts) sentGroup(s *sliceFacts, g *MissingGroup) {
	g.Since = s.firstSent
	if s.lastSent != nil {
		g.Last = &Happening{*s.lastSent, "their request was published"}
	}
	switch {
	case s.lost:
		g.Reason, g.Why = ReasonStreamLost, "the streams that carried their requests, or the replies, are gone"
		f.swept(g, "they are issued again at once, which does not count against them")
		return
	case len(f.alive) > 0 && f.unwritable(workqueue.KindEndpoint, g):
		return
	case s.late && s.handed:
		g.Reason, g.Why, g.Since = ReasonOverdue, "no reply came before the deadline", s.firstDeadline
		f.swept(g, "that counts as a failure of theirs: they are tried again, halved, or failed as deadline")
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
		g.Last = &Happening{*s.lastHanded, "a service took their request"}
	}
	g.Why = "a service has taken them"
	g.Next, g.When = "the service answers; without a reply by the deadline they are tried again", s.firstDeadline
	if s.partly {
		g.Reason = ReasonPartly
		g.Why = fmt.Sprintf("a service has taken them and answered %s of the same requests", manyItems(s.answered))
		if s.final {
			g.Why += "; the last message of the reply has come and another one is missing"
			g.Next = "the missing message comes; without it by the deadline they are tried again"
		}
	}
	if s.refused != "" {
		g.Reason, g.Last = ReasonQuarantine, &Happening{*s.refusedAt, "a reply could not be taken: " + s.refused}
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
