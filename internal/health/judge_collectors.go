package health

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/health"
)

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
