package health

import (
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// work judges what goes wrong between nodes and services.
func (f *facts) work() (all []Condition) {
	none := map[string]bool{}
	for _, e := range f.unheard {
		none[e.Endpoint] = true
		if kind, _ := workqueue.TargetKind(e.Endpoint); kind == workqueue.KindEndpoint && f.stalled() != nil {
			continue // services may be at servers that are away: it can be told when JetStream answers again
		}
		all = append(all, f.nobody(e))
	}
	for i := range f.db.Open {
		all = append(all, f.breaker(&f.db.Open[i]))
	}
	for i := range f.db.Slow {
		all = append(all, slow(&f.db.Slow[i]))
	}
	for i := range f.db.Untaken {
		if u := &f.db.Untaken[i]; !none[u.Endpoint] {
			all = append(all, dated(u.Since, Condition{
				Kind: OldestWaiting, Severity: f.waits(u.Since), Subject: u.Endpoint, Link: endpointLink(u.Endpoint),
				Title: fmt.Sprintf("Requests for %s have waited for %s", u.Endpoint, ago(f.at.Sub(u.Since))),
				Detail: fmt.Sprintf("%s with %s lie in the stream, and no service has taken them.",
					count(u.Slices, "request"), count(u.Items, "item")),
				Remedy: fmt.Sprintf("See what its services do: `tranche endpoints explain %s`; start more of them, or let each do "+
					"more at once: `tranche endpoints set %s --concurrency N`", u.Endpoint, u.Endpoint),
			}))
		}
	}
	for i := range f.db.Stale {
		s := &f.db.Stale[i]
		severity := Warning
		if f.at.Sub(s.Deadline) > staleUrgent {
			severity = Critical
		}
		all = append(all, dated(s.Deadline, Condition{
			Kind: StaleSlices, Severity: severity, Subject: s.Run.String(), Link: runLink(s.Run),
			Title: fmt.Sprintf("%s past the deadline: %s", count(s.Slices, "request"), runName(s.Run, s.Name, s.Plan)),
			Detail: fmt.Sprintf("They hold %s, the first since %s ago. The node that leads should have issued them again.",
				count(s.Items, "item"), ago(f.at.Sub(s.Deadline))),
			Remedy: fmt.Sprintf("See who leads, and what it says in its log: /nodes; what they wait for: "+
				"`tranche run explain %s`", s.Run),
		}))
	}
	return all
}

func (f *facts) waits(since time.Time) Severity {
	if f.at.Sub(since) > waitsLong*f.limits.Waiting {
		return Critical
	}
	return Warning
}

// nobody tells of work that nobody does.
func (f *facts) nobody(e unheard) Condition {
	c := Condition{Kind: NoListeners, Severity: Critical, Subject: e.Endpoint, Link: endpointLink(e.Endpoint)}
	kind, target := workqueue.TargetKind(e.Endpoint)
	if kind == workqueue.KindLocal {
		c.Title = "No node has the function " + target
		c.Detail = haveWork(e.Runs)
		c.Remedy = "Start the program that embeds a node with this function"
	} else {
		c.Title = "Nobody listens on endpoint " + e.Endpoint
		if e.like != "" {
			c.Title += "; was " + e.like + " meant?"
		}
		c.Detail = fmt.Sprintf("%s Requests that are out: %d.", haveWork(e.Runs), e.Out)
		c.Remedy = fmt.Sprintf("Start a service that listens on it; it is there when this names it: "+
			"`tranche endpoints show %s`", e.Endpoint)
	}
	return unkept(c)
}

func haveWork(runs int64) string {
	if runs == 1 {
		return "1 running run has work for it."
	}
	return fmt.Sprintf("%d running runs have work for it.", runs)
}

func (f *facts) breaker(b *health.OpenBreaker) Condition {
	c := Condition{
		Kind: BreakerOpen, Severity: Warning, Subject: b.Endpoint, Link: endpointLink(b.Endpoint),
		Title:  "Most requests fail at " + b.Endpoint,
		Detail: fmt.Sprintf("%s. %s it; one item at a time is sent, to see whether it is up again.", b.Reason, uses(b.Runs)),
		Remedy: fmt.Sprintf("See what its services say: `tranche endpoints explain %s`. It is asked again by itself when a "+
			"probe is answered", b.Endpoint),
	}
	if b.Runs == 0 {
		c.Severity = Info
	}
	return dated(b.Since, c)
}

func slow(e *pace.SlowEndpoint) Condition {
	return dated(e.Since, Condition{
		Kind: ServiceSlow, Severity: Warning, Subject: e.Endpoint, Link: endpointLink(e.Endpoint),
		Title: e.String(),
		Detail: fmt.Sprintf("Measured by the last requests that it answered, against the quickest of the last week. %s it.",
			uses(e.Runs)),
		Remedy: fmt.Sprintf("%s: `tranche endpoints show %s`. To send fewer requests at once: `tranche endpoints set %[2]s "+
			"--max-in-flight N`", logsOf(e.Endpoint), e.Endpoint),
	})
}

// logsOf says where to look for why something became slow.
func logsOf(endpoint string) string {
	switch kind, of := workqueue.TargetKind(endpoint); kind {
	case workqueue.KindHTTP:
		return "Ask who runs " + of
	case workqueue.KindSQL:
		return "Look at what the database of source " + of + " does"
	default:
		return "Find its instances, and look into their logs"
	}
}

func uses(runs int64) string {
	switch runs {
	case 0:
		return "No running run uses"
	case 1:
		return "1 running run uses"
	default:
		return fmt.Sprintf("%d running runs use", runs)
	}
}

// leftovers judges what is put aside until somebody looks.
func (f *facts) leftovers() (all []Condition) {
	for i := range f.db.Letters {
		l := &f.db.Letters[i]
		all = append(all, dated(l.Since, Condition{
			Kind: DeadLetters, Severity: Warning, Subject: l.Endpoint, Count: l.Letters,
			Link:   "/dead-letters?endpoint=" + url.QueryEscape(l.Endpoint),
			Title:  fmt.Sprintf("%s of %s", count(l.Letters, "dead letter"), l.Endpoint),
			Detail: fmt.Sprintf("No service could deal with them. The oldest came %s ago.", ago(f.at.Sub(l.Since))),
			Remedy: fmt.Sprintf("See them: `tranche dlq list --endpoint %s`; then send them again: `tranche dlq requeue`, or "+
				"give them up: `tranche dlq drop`", l.Endpoint),
		}))
	}
	for i := range f.db.Strays {
		q := &f.db.Strays[i]
		all = append(all, dated(q.First, Condition{
			Kind: Quarantined, Severity: Warning, Subject: q.Reason, Link: "/dead-letters?tab=quarantine",
			Count: q.Messages,
			Title: fmt.Sprintf("%s could not be taken: %s", count(q.Messages, "message"), q.Reason),
			Detail: fmt.Sprintf("Within the last day, the last one %s ago. Their items are tried again.",
				ago(f.at.Sub(q.Last))),
			Remedy: "See what services sent: `tranche quarantine list`. This is over a day after the last one",
		}))
	}
	all = append(all, f.events()...)
	for _, t := range f.db.Tokens {
		left := t.ExpiresAt.Sub(f.at)
		severity := Info
		if left < tokenUrgent {
			severity = Warning
		}
		all = append(all, dated(t.ExpiresAt.Add(-tokenWindow), Condition{
			Kind: TokenExpiring, Severity: severity, Subject: t.Name, Link: "/tokens",
			Title:  fmt.Sprintf("The token %s expires in %s", t.Name, ago(left)),
			Detail: fmt.Sprintf("It is one of role %s. Who uses it is refused from then on.", t.Role),
			Remedy: fmt.Sprintf("Make another and hand it over: `tranche token create --role %s`; then revoke this one", t.Role),
		}))
	}
	return all
}

// runs judges what wants somebody for one run.
func (f *facts) runs() []Condition {
	all := f.failed()
	all = append(all, f.held()...)
	for i := range f.db.Overdue {
		all = append(all, Unsealed(&f.db.Overdue[i], f.at))
	}
	for i := range f.db.Waiting {
		r := &f.db.Waiting[i]
		all = append(all, dated(r.Since, Condition{
			Kind: OldestWaiting, Severity: f.waits(r.Since), Subject: r.Run.String(), Link: runLink(r.Run),
			Title: fmt.Sprintf("Nothing moves for %s: %s", ago(f.at.Sub(r.Since)), runName(r.Run, r.Name, r.Plan)),
			Detail: fmt.Sprintf("It has items for %s that could be sent, none of them is out, and nothing has happened to "+
				"any.", r.Endpoint),
			Remedy: fmt.Sprintf("See what they wait for: `tranche run explain %s`", r.Run),
		}))
	}
	return all
}

// failed tells of runs that ended with failures that nobody has accepted. A re-run opens the run again, and takes its
// condition away.
func (f *facts) failed() (all []Condition) {
	var runs, items int64
	for i := range f.db.Failed {
		r := &f.db.Failed[i]
		runs, items = r.Runs-int64(i)-1, r.Items-r.Failed
		all = append(all, dated(r.FinishedAt, Condition{
			Kind: FailedItems, Severity: Warning, Subject: r.Run.String(), Link: runLink(r.Run) + "/errors", Count: r.Failed,
			Title: fmt.Sprintf("%s failed: %s", count(r.Failed, "item"), runName(r.Run, r.Name, r.Plan)),
			Detail: fmt.Sprintf("The run completed %s ago, and nobody has run its failed items again, or accepted them.",
				ago(f.at.Sub(r.FinishedAt))),
			Remedy: f.againstFailures(r.Run),
			Resets: slices.ContainsFunc(f.db.BadParts, func(b inspect.BadPart) bool { return b.Run == r.Run }),
		}))
	}
	for i := range f.db.Failed[:max(len(f.db.Failed)-1, 0)] {
		items -= f.db.Failed[i].Failed
	}
	if runs > 0 {
		all = append(all, dated(f.db.Failed[len(f.db.Failed)-1].FinishedAt, Condition{
			Kind: FailedItems, Severity: Warning, Subject: "older runs", Link: "/runs?state=completed",
			Of: runs, Count: items,
			Title:  fmt.Sprintf("%s failed in %s before those", count(items, "item"), count(runs, "more run")),
			Detail: "They completed within the last two weeks, and nobody has run their failed items again, or accepted them.",
			Remedy: "List them: `tranche run list --state completed`",
		}))
	}
	return all
}

// againstFailures is what helps a run: a re-run of what failed, or the reset of a step whose part is bad.
func (f *facts) againstFailures(run workqueue.RunID) string {
	again := fmt.Sprintf("then run them again: `tranche run rerun %s --failed`", run)
	if at := slices.IndexFunc(f.db.BadParts, func(b inspect.BadPart) bool { return b.Run == run }); at >= 0 {
		bad := &f.db.BadParts[at]
		again = bad.Why() + ": `" + bad.Command() + "`"
	}
	return fmt.Sprintf("See why: `tranche run errors %s`; %s, correct their data where that is wrong: "+
		"`tranche run correct %[1]s --items FILE`, or accept them: `tranche run accept %[1]s --failed --reason TEXT`",
		run, again)
}

func (f *facts) held() (all []Condition) {
	for i := range f.db.Held {
		all = append(all, Held(&f.db.Held[i]))
	}
	return all
}

// more is how many conditions of a kind are known and not listed.
func (f *facts) more() map[Kind]int64 {
	if f.db == nil {
		return nil
	}
	runs, more := map[control.Hold]int64{}, map[Kind]int64{}
	for i := range f.db.Held {
		r := &f.db.Held[i]
		runs[r.Hold] = r.Runs
		more[heldKind(r.Hold)]--
	}
	for hold, n := range runs {
		more[heldKind(hold)] += n
	}
	return more
}

// nodes judges who is there and who leads. While the database takes no writes, nodes cannot say that they live.
func (f *facts) nodes() (all []Condition) {
	if f.db.Database.ReadOnly {
		return []Condition{unkept(Condition{
			Kind: Database, Severity: Critical, Subject: f.host, Title: "PostgreSQL takes no writes", Link: "/nodes",
			Detail: "Nothing is sent and recorded, no command changes anything, and nodes cannot say that they live.",
			Remedy: "See whether it is a standby (`SELECT pg_is_in_recovery()`) that --database should not lead to, or was " +
				"set so (`SHOW default_transaction_read_only`); work goes on by itself when it takes writes again",
		})}
	}
	alive, first := 0, f.at // and since when one has been there
	for i := range f.db.Nodes {
		n := &f.db.Nodes[i]
		if n.Alive {
			alive++
			if n.StartedAt.Before(first) {
				first = n.StartedAt
			}
		}
		all = append(all, f.node(n)...)
	}
	return append(append(all, f.leader(alive, first)...), f.quorum()...)
}

func (f *facts) node(n *health.NodeHealth) (all []Condition) {
	switch {
	case !n.Alive:
		c := Condition{
			Kind: NodeDead, Severity: Warning, Subject: n.Session.String(), Link: "/nodes",
			Title: "Died: " + n.Name(),
			Detail: fmt.Sprintf("It was heard of last %s ago, and did not stop in good order. Others have taken over what it "+
				"held.", ago(f.at.Sub(n.BeatAt))),
			Remedy: "Start it again: `tranche serve`; its log says why it died",
		}
		if n.Slices > 0 || n.Loads > 0 {
			c.Severity = Critical
			c.Detail = fmt.Sprintf("It was heard of last %s ago, and still holds %s with %s, and %s that it was loading. The "+
				"node that leads takes them from it.", ago(f.at.Sub(n.BeatAt)), count(n.Slices, "request"), count(n.Items, "item"),
				count(n.Loads, "run"))
		}
		all = append(all, dated(n.ExpiresAt, c))
	case f.at.Sub(n.BeatAt) > lateAfter:
		all = append(all, dated(n.BeatAt, Condition{
			Kind: NodeLate, Severity: Warning, Subject: n.Session.String(), Link: "/nodes",
			Title: "Not heard of: " + n.Name(),
			Detail: fmt.Sprintf("It was heard of last %s ago, and holds %s with %s. It counts as dead in %s.",
				ago(f.at.Sub(n.BeatAt)), count(n.Slices, "request"), count(n.Items, "item"), ago(n.ExpiresAt.Sub(f.at))),
			Remedy: "See whether its machine is overloaded, or cut off from PostgreSQL",
		}))
	}
	switch {
	case !n.Alive || n.Host == f.host: // this one knows that better itself
	case n.Refused != "":
		all = append(all, natsRefuses(n.Host, n.Name(), n.Refused))
	case n.Away:
		all = append(all, unkept(Condition{
			Kind: NATS, Severity: Critical, Subject: n.Host, Link: "/nodes",
			Title:  "Cannot reach NATS: " + n.Name(),
			Detail: "It sends nothing and records nothing until it can.",
			Remedy: seeToNATS,
		}))
	}
	return all
}

func (f *facts) leader(alive int, first time.Time) []Condition {
	c := Condition{
		Kind: LeaderMissing, Severity: Critical, Subject: "leader", Title: "No node leads", Link: "/nodes",
		Detail: fmt.Sprintf("%s alive. Without a leader, requests of dead nodes and past deadlines are not issued again.",
			isAre(alive, "node")),
		Remedy: "Start a node: `tranche serve`",
	}
	if alive > 0 {
		c.Remedy = "See what the nodes say in their logs: one of them should take the lead within seconds"
	}
	switch l := f.db.Leader; {
	case l == nil && alive > 0 && f.at.Sub(first) <= leaderGrace: // the first node of all is about to
		return nil
	case l == nil:
		return []Condition{unkept(c)}
	case f.at.Sub(l.ExpiresAt) > leaderGrace:
		c.Detail = fmt.Sprintf("The lease ran out %s ago, and %s", ago(f.at.Sub(l.ExpiresAt)), c.Detail)
		return []Condition{dated(l.ExpiresAt, c)}
	default:
		return nil
	}
}

func isAre(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun + " is"
	case 1:
		return "1 " + noun + " is"
	default:
		return fmt.Sprintf("%d %ss are", n, noun)
	}
}
