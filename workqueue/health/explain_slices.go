package health

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// say explains a group by the rule of a kind, adding the live nodes and the leader to the row.
func (f *facts) say(g *MissingGroup, k Kind, row Row) {
	all := Row{"nodes": f.nodesText(), "leader": f.leaderText()}
	maps.Copy(all, row)
	g.Say(k, all)
}

// claimable explains claimable items: the first obstacle, in the order of a claim's checks, or that they are next.
func (f *facts) claimable(r *runFacts, st *stepFacts, g *MissingGroup) {
	e := cmp.Or(f.endpoints[g.Endpoint], &endpointFacts{name: g.Endpoint})
	if f.shut(r, st, e, g) {
		return
	}
	switch {
	case st.live >= st.inFlight:
		limited(g, ReasonStepLimit, stepLimit(r, st))
	case r.maxInFlight > 0 && r.inFlight >= r.maxInFlight:
		limited(g, ReasonQuota, Row{"live": r.inFlight, "limit": r.maxInFlight, "namespace": r.namespace})
	case e.maxInFlight > 0 && e.busy >= e.maxInFlight:
		limited(g, ReasonBudget, Row{"live": e.busy, "limit": e.maxInFlight})
		behind(r, e, g)
	case st.inFlightAuto && e.paced && e.liveAuto >= e.inFlight:
		limited(g, ReasonAdaptive, Row{"live": e.liveAuto, "limit": e.inFlight, "change": e.change})
		behind(r, e, g)
	case f.rateGroup(r, st, e, g), shared(r, st, e, g):
	case st.kind.Fetched() && e.live > 0:
		f.say(g, ReasonNext, Row{"case": "busy", "live": e.live})
	default:
		f.say(g, ReasonNext, nil)
		g.When = new(f.at.Add(lookWithin))
	}
}

func stepLimit(r *runFacts, st *stepFacts) Row {
	row := Row{"live": st.live, "limit": st.inFlight, "flag": r.forStep(st)}
	if st.inFlightCap > 0 {
		row["case"] = "gentle"
	}
	return row
}

// shut explains items that cannot be claimed however few requests are in flight, if they are such.
func (f *facts) shut(r *runFacts, st *stepFacts, e *endpointFacts, g *MissingGroup) bool {
	switch {
	case r.hold != "":
		f.holdGroup(r, g)
	case len(f.alive) == 0:
		f.noNode(g)
	case st.kind.OverNATS() && !slices.ContainsFunc(f.alive, func(s *Node) bool { return !s.Away }):
		f.natsUnreachable(g, f.alive)
	case f.unwritable(st.kind, g):
	case st.barred:
		f.barrierGroup(r, st, g)
	case st.kind == workqueue.KindLocal && !f.someNodeHas(st.endpoint):
		_, function := workqueue.TargetKind(st.endpoint)
		g.Say(ReasonNoLocal, Row{"function": function})
	case e.open:
		f.breakerGroup(st, e, g)
	default:
		return false
	}
	return true
}

func limited(g *MissingGroup, reason Kind, row Row) {
	if kind, _ := workqueue.TargetKind(g.Endpoint); kind == workqueue.KindLocal {
		row["owner"] = string(OwnerNode)
	}
	g.Say(reason, row)
}

// behind adds that runs of higher priority come first when requests of the endpoint end.
func behind(r *runFacts, e *endpointFacts, g *MissingGroup) {
	runs, one, highest := e.ahead(r)
	if runs == 0 {
		return
	}
	first := *g
	g.Say(ReasonPriority, Row{"runs": runs, "one": one, "highest": highest, "priority": r.priority})
	g.Owner, g.Who, g.Why, g.Advice = first.Owner, first.Who, g.Why+": "+first.Why, append(first.Advice, g.Advice...)
}

// shared explains items of a run that has used its share of an endpoint's limit. It reports whether it has.
func shared(r *runFacts, st *stepFacts, e *endpointFacts, g *MissingGroup) bool {
	limit := e.maxInFlight
	others, shares := e.others(r, st.shares)
	if st.inFlightAuto && e.paced && (limit == 0 || e.inFlight < limit) {
		limit = e.inFlight
	}
	portion := dispatch.Portion(limit, st.shares, shares)
	if limit == 0 || others == 0 || st.live < portion {
		return false
	}
	limited(g, ReasonShare, Row{"live": st.live, "limit": portion, "takes": limit,
		"others": others, "more": r.priority + 1})
	return true
}

func (f *facts) breakerGroup(st *stepFacts, e *endpointFacts, g *MissingGroup) {
	row := Row{"reason": e.breakerReason, "probes": e.probes, "attempts": st.maxAttempts, "owner": string(OwnerTimer)}
	g.Since = e.breakerSince
	switch {
	case e.probeState == "claimed" || e.probeState == "sent":
		delete(row, "owner")
		f.say(g, ReasonProbing, row)
		return
	case st.live >= st.inFlight || e.maxInFlight > 0 && e.busy >= e.maxInFlight:
		row["case"], row["owner"] = "full", string(OwnerService)
	case e.probeAt != nil && !e.probeAt.After(f.at):
		row["case"], row["owner"] = "due", string(OwnerNode)
	}
	f.say(g, BreakerOpen, row)
	switch row["case"] {
	case nil:
		g.When = e.probeAt
	case "due":
		g.When = new(f.at.Add(lookWithin))
	}
}

func (f *facts) rateGroup(r *runFacts, st *stepFacts, e *endpointFacts, g *MissingGroup) bool {
	wait, slowest, why, advice := time.Duration(0), 0.0, "", Advice{}
	consider := func(tokens float64, at *time.Time, rate float64, what string, a Advice) {
		if rate <= 0 {
			return
		}
		if has := level(tokens, at, rate, f.at); has <= 0 {
			w := time.Duration(math.Ceil(-has/rate*float64(time.Second))) + time.Millisecond
			if w > wait {
				wait, slowest, why, advice = w, rate, what, a
			}
		}
	}
	target := workqueue.TargetText(e.name)
	if st.rate != nil {
		consider(st.tokens, st.tokensAt, *st.rate, "the run sends at most "+PerSecond(*st.rate, "item"),
			Advice{"raise the limit", fmt.Sprintf("tranche run set %s --rate N%s", r.id, r.forStep(st))})
	}
	consider(e.tokens, e.tokensAt, e.rate, target+" gets at most "+PerSecond(e.rate, "item")+" over all runs",
		Advice{"raise the limit", fmt.Sprintf("tranche endpoints set %s --rate N", e.name)})
	consider(e.callTokens, e.callTokensAt, e.requestRate, target+" gets at most "+PerSecond(e.requestRate, "request")+
		" in all", Advice{"raise the limit", fmt.Sprintf("tranche endpoints set %s --request-rate N/s", e.name)})
	if st.inFlightAuto && e.learnedRate != nil && (e.rate <= 0 || *e.learnedRate < e.rate) {
		consider(e.tokens, e.tokensAt, *e.learnedRate, target+" said it is overloaded, and gets "+
			PerSecond(*e.learnedRate, "item"), Advice{"see how it was found", "tranche endpoints show " + e.name})
	}
	if wait == 0 {
		return false
	}
	row := Row{"limit": why}
	if all := float64(g.Items) / slowest; all >= 2 {
		row["all"] = (time.Duration(all) * time.Second).String()
	}
	g.Say(ReasonRate, row)
	g.When, g.Advice = new(f.at.Add(wait)), []Advice{advice}
	return true
}

// PerSecond formats a rate with its noun.
func PerSecond(rate float64, noun string) string {
	text := fmt.Sprintf("%.3g", rate)
	if rate >= 10 {
		text = control.Grouped(int64(rate + 0.5))
	}
	if text != "1" {
		noun += "s"
	}
	return text + " " + noun + " a second"
}

// readBadParts finds the parts of a run that later steps reported as bad. It reads nothing for several runs.
func (f *facts) readBadParts(ctx context.Context, tx pgx.Tx) (err error) {
	if len(f.of) == 1 && f.runs[f.of[0]] != nil {
		f.runs[f.of[0]].bad, err = inspect.ReadBadParts(ctx, tx, f.of)
	}
	return err
}

// again advises how to rerun failed items: reset the step whose part is bad, or else rerun what failed.
func (r *runFacts) again(do string) (all []Advice) {
	for _, b := range r.bad {
		all = append(all, Advice{b.Why(), b.Command()})
	}
	if len(all) > 0 {
		return all
	}
	return []Advice{{do, fmt.Sprintf("tranche run rerun %s --failed", r.id)}}
}

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
		workqueue.CauseRetry:      "the service requested a retry",
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
