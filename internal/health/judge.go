package health

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

const (
	// Not waits: how far back failed runs, quarantined messages and dead nodes are told of.
	failedWindow = 14 * 24 * time.Hour
	straysWindow = 24 * time.Hour
	deadWindow   = time.Hour
	// Not waits: so long before its end a token is told of, and is a warning.
	tokenWindow = 7 * 24 * time.Hour
	tokenUrgent = 24 * time.Hour
	staleGrace  = 15 * time.Second // a leader sweeps every second
	staleUrgent = 2 * time.Minute
	lateAfter   = 3 * time.Second // three heartbeats
	leaderGrace = 2 * time.Second // a lease changes hands within it
	waitsLong   = 6               // times Config.Waiting
)

// judge says what of the facts a person should see to. It asks nobody.
func judge(f *facts) (all []Condition) {
	if f.db == nil {
		all = append(all, f.databaseAway())
	} else {
		all = append(all, f.runs()...)
		all = append(all, f.work()...)
		all = append(all, f.leftovers()...)
		all = append(all, f.nodes()...)
		all = append(all, f.schedules()...)
		all = append(all, f.collectors()...)
		all = append(all, f.alerts()...)
		all = append(all, f.others()...)
	}
	all = append(all, f.machine()...)
	for i := range all {
		all[i].Of, all[i].Count = max(all[i].Of, 1), max(all[i].Count, 1)
	}
	return all
}

// dated sets since when; kept conditions are dated later.
func dated(at time.Time, c Condition) Condition {
	c.Since = at
	return c
}

func unkept(c Condition) Condition {
	c.unkept = true
	return c
}

// count writes a number with its noun: 1 item, 2 items.
func count[N ~int | ~int64 | ~uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// runName is a run for people.
func runName(id workqueue.RunID, name, plan string) string {
	if name == "" {
		return fmt.Sprintf("run %s of %s", id.String()[:8], plan)
	}
	return "run " + name
}

func runLink(id workqueue.RunID) string { return "/runs/" + id.String() }

func endpointLink(name string) string { return "/endpoint?name=" + url.QueryEscape(name) }

// ago is a time that has gone by, for people.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

// size is a number of bytes for people.
func size(n uint64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	power := min(int(math.Log2(float64(n))/10), 5)
	return fmt.Sprintf("%.1f %ciB", float64(n)/math.Pow(step, float64(power)), "KMGTP"[power-1])
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// events judges those that could not be published: NATS is away, or does not take them from the nodes' user.
func (f *facts) events() []Condition {
	e := f.db.Events
	if e.Events == 0 || e.Since == nil {
		return nil
	}
	return []Condition{dated(*e.Since, Condition{
		Kind: EventsWaiting, Severity: Warning, Subject: "events", Link: "/nodes",
		Title: count(e.Events, "event") + " could not be published",
		Detail: fmt.Sprintf("The oldest is %s old; they say %s. Who waits for them does not know yet.",
			ago(f.at.Sub(*e.Since)), strings.Join(e.Kinds, ", ")),
		Remedy: "See to NATS, and to what the nodes log: their user may lack a permission for these kinds, or they are " +
			"larger than max_payload. They are published as soon as NATS takes them",
	})}
}

// alerts judges who could not be told.
func (f *facts) alerts() (all []Condition) {
	for i := range f.db.AlertsFailing {
		a := &f.db.AlertsFailing[i]
		all = append(all, dated(a.Since, Condition{
			Kind: AlertFailing, Severity: Warning, Subject: a.Alert, Link: "/alerts?name=" + url.QueryEscape(a.Alert),
			Title: "Nobody hears of alert " + a.Alert,
			Detail: fmt.Sprintf("Its receiver could not be told anything for %s, at %s; %s. The last: %s.",
				ago(f.at.Sub(a.Since)), count(a.Failures, "attempt"), isAre(int(a.Waiting), "message")+" waiting", a.Reason),
			Remedy: fmt.Sprintf("Mend that, then try it: `tranche alert test %s`", a.Alert),
		}))
	}
	return all
}

// gaps tells what was confirmed and is lost.
func (f *facts) gaps() (all []Condition) {
	const day = "2006-01-02 15:04:05.0 MST"
	for i := range f.db.Gaps {
		g := &f.db.Gaps[i]
		c := Condition{
			Kind: DatabaseGap, Severity: Critical, Subject: g.NoticedAt.UTC().Format("2006-01-02T15:04:05Z"), Link: "/nodes",
			Title: "The database went back in time",
			Detail: fmt.Sprintf("What was confirmed between %s and %s, or in the second after, is lost: runs that were "+
				"started, items that were added, operations, acknowledgements, changes. What was out was issued again (%s "+
				"under way).", g.From.UTC().Format(day), g.To.UTC().Format(day), count(int64(g.Runs), "run")),
			Remedy: "Have what was sent to Tranche in that time sent again: with the same idempotency keys nothing is done " +
				"twice. Replicate synchronously where a failover is to lose nothing",
		}
		if !g.Lost {
			c.Severity, c.Title = Warning, "Another server took the database over"
			c.Detail = fmt.Sprintf("Nothing is known to be lost. If it was replicated asynchronously, what was confirmed "+
				"in the second after %s may be. What was out was issued again.", g.From.UTC().Format(day))
		}
		all = append(all, dated(g.NoticedAt, c))
	}
	return all
}

// quorum tells of streams that do not answer any node that reaches NATS.
func (f *facts) quorum() []Condition {
	stalled := f.stalled()
	if stalled == nil {
		return nil
	}
	return []Condition{unkept(dated(*stalled.StalledSince, Condition{ // nodes that start anew know only since then
		Kind: NATS, Severity: Critical, Subject: jetStream, Title: "JetStream does not answer", Link: "/nodes",
		Detail: "Nothing is sent and recorded until it does. " + health.StalledText(stalled.StalledWhy) + ".",
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

// schedules judges what was to be started by the clock.
func (f *facts) schedules() (all []Condition) {
	for i := range f.db.SchedulesFailed {
		s := &f.db.SchedulesFailed[i]
		what := map[schedule.FireState]string{schedule.FireMissed: "missed its time"}[s.State]
		if what == "" {
			what = "could not start its run"
		}
		all = append(all, dated(s.Since, Condition{
			Kind: ScheduleFailing, Severity: Warning, Subject: s.Schedule, Link: "/schedules",
			Title:  fmt.Sprintf("Schedule %s %s", s.Schedule, what),
			Detail: fmt.Sprintf("That of %s has no run: %s", moment(s.Due), s.Reason),
			Remedy: fmt.Sprintf("Mend that, then start it: `tranche schedule run-now %s`; the next due time that "+
				"goes well ends this, too", s.Schedule),
		}))
	}
	for i := range f.db.SchedulesStuck {
		all = append(all, f.stuck(&f.db.SchedulesStuck[i]))
	}
	for i := range f.db.SchedulesLate {
		all = append(all, Late(&f.db.SchedulesLate[i], f.at))
	}
	return all
}

func (f *facts) stuck(s *health.StuckSchedule) Condition {
	c := Condition{
		Kind: ScheduleOverdue, Severity: Critical, Subject: s.Schedule, Link: "/schedules",
		Title:  fmt.Sprintf("Schedule %s has been due for %s", s.Schedule, ago(f.at.Sub(s.Since))),
		Detail: fmt.Sprintf("No leader has taken the due time %s.", moment(s.Due)),
		Remedy: "See whether a node leads, and what its duties say: `tranche nodes`",
	}
	if s.Taken {
		c.Severity = Warning
		c.Detail = fmt.Sprintf("The run of %s is not started yet.", moment(s.Due))
		switch {
		case s.Loading != nil:
			c.Detail += fmt.Sprintf(" Its items are being loaded, for %s.", ago(f.at.Sub(*s.Loading)))
		case s.Reason != "":
			c.Detail += " The last that was heard: " + s.Reason
		}
		c.Remedy = fmt.Sprintf("It is tried again by itself; mend what it says if it says anything. "+
			"What became of it: `tranche schedule fires %s`", s.Schedule)
	}
	return dated(s.Since, c)
}

// moment is a time for people who may be anywhere.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

const collectorsLink = "/collectors"

// collectors judges what waits to be flushed, and what is not tried again.
func (f *facts) collectors() (all []Condition) {
	for i := range f.db.CollectorsParked {
		c := &f.db.CollectorsParked[i]
		all = append(all, dated(c.Since, Condition{
			Kind: CollectorParked, Severity: Warning, Subject: c.Collector, Link: collectorsLink, Count: c.Ops,
			Title: fmt.Sprintf("%s parked: collector %s", isAre(int(c.Ops), "operation"), c.Collector),
			Detail: fmt.Sprintf("They failed too often, or for good, the first %s ago, and are not tried again by "+
				"themselves.", ago(f.at.Sub(c.Since))),
			Remedy: fmt.Sprintf("See why: `tranche collector ops %s --state parked`; then try them again: `tranche collector "+
				"requeue %s --all`, or give them up: `tranche collector drop %s --all`", c.Collector, c.Collector, c.Collector),
		}))
	}
	for i := range f.db.CollectorsLate {
		all = append(all, f.lateCollector(&f.db.CollectorsLate[i]))
	}
	for i := range f.db.FlushesHung {
		all = append(all, f.hungFlush(&f.db.FlushesHung[i]))
	}
	for i := range f.db.CollectorsRefusing {
		all = append(all, f.refusing(&f.db.CollectorsRefusing[i]))
	}
	return all
}

func (f *facts) refusing(c *health.RefusingCollector) Condition {
	return dated(c.Since, Condition{
		Kind: CollectorRefuses, Severity: f.waits(c.Since), Subject: c.Collector, Link: collectorsLink,
		Title: fmt.Sprintf("Adds are refused for %s: collector %s", ago(f.at.Sub(c.Since)), c.Collector),
		Detail: fmt.Sprintf("What enrich asks for cannot be had, last %s ago: %.300s. Nothing of such an add is stored, and "+
			"producers are told to add again later.", ago(f.at.Sub(c.Last)), strings.TrimSuffix(c.Problem, ".")),
		Remedy: fmt.Sprintf("Mend the source, or the query (`tranche collector show %s --source`, then `tranche collector "+
			"apply FILE`); it is over with the first add that is taken: `tranche collector add %[1]s FILE`", c.Collector),
	})
}

func (f *facts) lateCollector(c *health.LateCollector) Condition {
	out := Condition{
		Kind: CollectorLate, Severity: f.waits(c.Since), Subject: c.Collector, Link: collectorsLink,
		Title: fmt.Sprintf("Operations wait %s longer than they should: collector %s", ago(f.at.Sub(c.Since)), c.Collector),
		Detail: fmt.Sprintf("They are for endpoint %s, and have not been flushed within max_age.",
			c.Endpoint),
		Remedy: fmt.Sprintf("See what keeps them waiting: `tranche collector show %s`", c.Collector),
	}
	switch {
	case c.State == collector.CollectorPaused:
		out.Severity = Info
		out.Detail = fmt.Sprintf("%s paused it, and it goes on taking operations.", c.PausedBy)
		out.Remedy = fmt.Sprintf("Go on with: `tranche collector resume %s`", c.Collector)
	case c.Code != "":
		out.Detail += fmt.Sprintf(" The last flush failed with %s: %.200s.", c.Code, c.Message)
	}
	return dated(c.Since, out)
}

func (f *facts) hungFlush(h *health.HungFlush) Condition {
	out := Condition{
		Kind: CollectorHangs, Severity: f.waits(h.Since), Subject: h.Collector, Link: collectorsLink,
		Title: fmt.Sprintf("A flush is under way for %s: collector %s", ago(f.at.Sub(h.Since)), h.Collector),
		Detail: fmt.Sprintf("It is of key %.100s, for endpoint %s, and may take %s. What waits for its key goes after it.",
			h.Key, h.Endpoint, ago(h.Timeout)),
		Remedy: fmt.Sprintf("See whether the service still works on it: `tranche endpoints show %s`; restart it if not, and "+
			"give the collector a shorter timeout: `tranche collector show %s`", h.Endpoint, h.Collector),
	}
	if h.Code != "" {
		out.Detail += fmt.Sprintf(" The last flush failed with %s: %.200s.", h.Code, h.Message)
	}
	return dated(h.Since, out)
}
