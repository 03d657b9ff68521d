package health

import (
	"fmt"
	"net/url"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
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
		Remedy: fmt.Sprintf("Find its instances, and look into their logs: `tranche endpoints show %s`. To send fewer "+
			"requests at once: `tranche endpoints set %s --max-in-flight N`", e.Endpoint, e.Endpoint),
	})
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
