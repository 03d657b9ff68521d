package health

import (
	"context"
	"fmt"
	"maps"
	"math"
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
	e := f.endpoints[g.Endpoint]
	if e == nil {
		e = &endpointFacts{name: g.Endpoint}
	}
	if f.shut(r, st, e, g) {
		return
	}
	switch {
	case st.live >= st.inFlight:
		limited(g, ReasonStepLimit, stepLimit(r, st))
	case r.maxInFlight > 0 && r.inFlight >= r.maxInFlight:
		limited(g, ReasonQuota, Row{"live": r.inFlight, "limit": r.maxInFlight, "namespace": r.namespace})
	case e.maxInFlight > 0 && e.live >= e.maxInFlight:
		limited(g, ReasonBudget, Row{"live": e.live, "limit": e.maxInFlight})
		behind(r, e, g)
	case st.inFlightAuto && e.paced && e.liveAuto >= e.inFlight:
		limited(g, ReasonAdaptive, Row{"live": e.liveAuto, "limit": e.inFlight, "change": e.change})
		behind(r, e, g)
	case f.rateGroup(r, st, e, g), shared(r, st, e, g):
	case st.kind.Fetched() && e.live > 0:
		f.say(g, ReasonNext, Row{"case": "busy", "live": e.live})
	default:
		f.say(g, ReasonNext, nil)
		g.When = after(f.at, lookWithin)
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
	case st.kind.OverNATS() && f.cutOff():
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
	case st.live >= st.inFlight || e.maxInFlight > 0 && e.live >= e.maxInFlight:
		row["case"], row["owner"] = "full", string(OwnerService)
	case e.probeAt != nil && !e.probeAt.After(f.at):
		row["case"], row["owner"] = "due", string(OwnerNode)
	}
	f.say(g, BreakerOpen, row)
	switch row["case"] {
	case nil:
		g.When = e.probeAt
	case "due":
		g.When = after(f.at, lookWithin)
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
	g.When, g.Advice = after(f.at, wait), []Advice{advice}
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
func (f *facts) readBadParts(ctx context.Context, tx pgx.Tx, runs []workqueue.RunID) (err error) {
	if len(runs) == 1 && f.runs[runs[0]] != nil {
		f.runs[runs[0]].bad, err = inspect.ReadBadParts(ctx, tx, runs)
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
