package health

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// claimable explains items that a node may claim as far as their own state goes: the first thing that stands in the way
// of a claim, in the order in which a claim looks, or that they are next.
func (f *facts) claimable(r *runFacts, st *stepFacts, g *MissingGroup) {
	e := f.endpoints[g.Endpoint]
	if e == nil {
		e = &endpointFacts{name: g.Endpoint}
	}
	if f.shut(r, st, e, g) {
		return
	}
	switch {
	case st.live >= st.inFlight:
		limited(g, ReasonStepLimit, st.live, st.inFlight, "the run's limit of requests out at once", Advice{
			"let more be out at once", fmt.Sprintf("tranche run set %s --in-flight N%s", r.id, r.forStep(st))})
	case e.maxInFlight > 0 && e.live >= e.maxInFlight:
		limited(g, ReasonBudget, e.live, e.maxInFlight, "the budget of "+workqueue.TargetText(e.name)+" over all runs",
			Advice{"let more be out at once", fmt.Sprintf("tranche endpoints set %s --max-in-flight N", e.name)})
		behind(r, e, g)
	case st.inFlightAuto && e.paced && e.liveAuto >= e.inFlight:
		limited(g, ReasonAdaptive, e.liveAuto, e.inFlight, "the limit that nodes found for "+workqueue.TargetText(e.name),
			Advice{"see how it was found", "tranche endpoints show " + e.name})
		if e.change != "" {
			g.Why += "; its last change: " + e.change
		}
		behind(r, e, g)
	case f.rateGroup(r, st, e, g), shared(r, st, e, g):
	default:
		g.Reason, g.Owner, g.Who = ReasonNext, OwnerNode, f.nodesText()
		g.Why = "nothing stands in their way"
		g.Next, g.When = "a node claims them with its next look for work", after(f.at, lookWithin)
		if st.kind.Fetched() && e.live > 0 {
			g.Why += fmt.Sprintf("; nodes are at %d requests to %s, and take as many at once as they have room for", e.live,
				workqueue.TargetText(e.name))
			g.Next, g.When = "a node claims them with its next look for work, when it has room for them", nil
		}
	}
}

// shut explains items that are not claimed however little is out, if they are such.
func (f *facts) shut(r *runFacts, st *stepFacts, e *endpointFacts, g *MissingGroup) bool {
	switch {
	case r.hold != "":
		f.holdGroup(r, g)
	case len(f.alive) == 0:
		f.noNode(g)
	case st.kind.OverNATS() && f.cutOff():
		f.natsUnreachable(g, f.alive)
	case f.unwritable(st.kind, g):
	case st.barred:
		f.barrierGroup(r, st, g)
	case st.kind == workqueue.KindLocal && !f.someNodeHas(st.endpoint):
		f.noLocal(st, g)
	case e.open:
		f.breakerGroup(st, e, g)
	default:
		return false
	}
	return true
}

// limited explains items that wait for a request to end.
func limited(g *MissingGroup, reason Kind, live, limit int, what string, advice Advice) {
	g.Reason, g.Owner = reason, OwnerService
	if kind, _ := workqueue.TargetKind(g.Endpoint); kind == workqueue.KindLocal {
		g.Owner = OwnerNode
	}
	g.Who = servers(g.Endpoint)
	g.Why = fmt.Sprintf("%d of %d are out, which is %s", live, limit, what)
	g.Next = "the next are claimed as soon as one of the requests out is answered"
	g.Advice = []Advice{advice}
}

// behind adds that other runs come first when requests of an endpoint end.
func behind(r *runFacts, e *endpointFacts, g *MissingGroup) {
	runs, one, highest := e.ahead(r.priority)
	if runs == 0 {
		return
	}
	g.Reason = ReasonPriority
	g.Why = fmt.Sprintf("%d runs of higher priority (up to %d; this one has %d) come first: %s", runs, highest, r.priority,
		g.Why)
	if runs == 1 {
		g.Why = fmt.Sprintf("run %s of priority %d (this one has %d) comes first: %s", one, highest, r.priority, g.Why)
	}
	g.Next = "the next are claimed when a request ends and the runs of higher priority have nothing to send"
	g.Advice = append(g.Advice, Advice{"raise its priority",
		fmt.Sprintf("tranche run set %s --priority %d", r.id, highest)})
}

// shared explains items of a run that has its part of an endpoint's limit beside other runs, if it has.
func shared(r *runFacts, st *stepFacts, e *endpointFacts, g *MissingGroup) bool {
	limit, others := e.maxInFlight, e.others(r.priority)
	if st.inFlightAuto && e.paced && (limit == 0 || e.inFlight < limit) {
		limit = e.inFlight
	}
	if limit == 0 || others == 0 || st.live < dispatch.Portion(limit, others) {
		return false
	}
	limited(g, ReasonShare, st.live, dispatch.Portion(limit, others), fmt.Sprintf(
		"the run's share of the %d that %s takes: %s for it, too", limit, workqueue.TargetText(e.name), haveWork(others)),
		Advice{"raise its priority", fmt.Sprintf("tranche run set %s --priority %d", r.id, r.priority+1)})
	g.Next = "the next are claimed when one of its requests is answered, or when other runs need less"
	return true
}

func haveWork(runs int) string {
	if runs == 1 {
		return "another run has work"
	}
	return fmt.Sprintf("%d other runs have work", runs)
}

// breakerGroup explains items whose endpoint is not asked at the moment.
func (f *facts) breakerGroup(st *stepFacts, e *endpointFacts, g *MissingGroup) {
	g.Reason, g.Owner, g.Who = BreakerOpen, OwnerTimer, "the breaker of "+workqueue.TargetText(e.name)
	g.Since, g.When = e.breakerSince, e.probeAt
	g.Why = "most requests to " + workqueue.TargetText(e.name) + " failed, so nothing is sent to it"
	if e.breakerReason != "" {
		g.Why += ": " + e.breakerReason
	}
	g.Next = "one item is sent as a probe; when it is answered everything goes on"
	if e.probes > 0 {
		g.Next = fmt.Sprintf("%d probes failed; another item is sent, and when it is answered everything goes on",
			e.probes)
	}
	switch {
	case e.probeState == "claimed" || e.probeState == "sent":
		g.Reason, g.Owner, g.Who, g.When = ReasonProbing, OwnerService, servers(e.name), nil
		g.Next = "a probe is out; when it is answered everything goes on, when it fails another one follows"
	case st.live >= st.inFlight || e.maxInFlight > 0 && e.live >= e.maxInFlight:
		g.Owner, g.Who, g.When = OwnerService, servers(e.name), nil
		g.Next = "as many requests are out as may be; when one of them ends, answered or at its deadline, one item is sent " +
			"as a probe"
	case e.probeAt != nil && !e.probeAt.After(f.at):
		g.Owner, g.Who, g.When = OwnerNode, f.nodesText(), after(f.at, lookWithin)
		g.Next = "a node sends one item as a probe with its next look for work; when it is answered everything goes on"
	}
	g.Advice = []Advice{{"see what the endpoint answers", "tranche endpoints show " + e.name},
		{"fix the service; nothing must be done here then", ""},
		{fmt.Sprintf("or say that it is no outage: for ten minutes requests go whatever fails, and an item that it "+
			"answers with errors fails permanently after %d", st.maxAttempts),
			fmt.Sprintf("tranche endpoints set %s --breaker closed", e.name)}}
}

// rateGroup explains items that wait for a rate, if one stands in their way.
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
	if st.rate != nil {
		consider(st.tokens, st.tokensAt, *st.rate,
			fmt.Sprintf("the run sends at most %s", PerSecond(*st.rate, "item")),
			Advice{"let more be sent", fmt.Sprintf("tranche run set %s --rate N%s", r.id, r.forStep(st))})
	}
	if e.rate > 0 {
		consider(e.tokens, e.tokensAt, e.rate, fmt.Sprintf("%s gets at most %s over all runs",
			workqueue.TargetText(e.name), PerSecond(e.rate, "item")),
			Advice{"let more be sent", fmt.Sprintf("tranche endpoints set %s --rate N", e.name)})
	}
	if e.requestRate > 0 {
		consider(e.callTokens, e.callTokensAt, e.requestRate, fmt.Sprintf("%s gets at most %s in all",
			workqueue.TargetText(e.name), PerSecond(e.requestRate, "request")),
			Advice{"let more be sent", fmt.Sprintf("tranche endpoints set %s --request-rate N/s", e.name)})
	}
	if st.inFlightAuto && e.learnedRate != nil && (e.rate <= 0 || *e.learnedRate < e.rate) {
		consider(e.tokens, e.tokensAt, *e.learnedRate, fmt.Sprintf(
			"%s said that it is asked too much, and gets %s", workqueue.TargetText(e.name), PerSecond(*e.learnedRate, "item")),
			Advice{"see how that was found", "tranche endpoints show " + e.name})
	}
	if wait == 0 {
		return false
	}
	g.Reason, g.Owner, g.Who, g.Why = ReasonRate, OwnerTimer, "the rate limit", why
	g.Next, g.When = "the next are claimed when the rate allows", after(f.at, wait)
	if all := float64(g.Items) / slowest; all >= 2 {
		g.Next = fmt.Sprintf("at that rate all of them take %s; the next are claimed when it allows",
			time.Duration(all)*time.Second)
	}
	g.Advice = []Advice{advice}
	return true
}

// PerSecond writes a rate of a noun.
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

// readBadParts finds the parts of a run that steps after say are bad.
func (f *facts) readBadParts(ctx context.Context, tx pgx.Tx, runs []workqueue.RunID) (err error) {
	if len(runs) == 1 && f.runs[runs[0]] != nil {
		f.runs[runs[0]].bad, err = inspect.ReadBadParts(ctx, tx, runs)
	}
	return err
}

// again is how what failed is done again: at the step whose part is bad, or where it failed.
func (r *runFacts) again(do string) (all []Advice) {
	for _, b := range r.bad {
		all = append(all, Advice{b.Why(), b.Command()})
	}
	if len(all) > 0 {
		return all
	}
	return []Advice{{do, fmt.Sprintf("tranche run rerun %s --failed", r.id)}}
}
