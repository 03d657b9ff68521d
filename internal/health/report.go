// Package health says what a person must see to: conditions of runs, endpoints, nodes, streams and disks, each with its
// severity, since when it has been so, and what helps.
//
// A [Watch] looks at PostgreSQL, NATS and the machine at most every few seconds, however many ask, and answers within
// a fraction of a second from what it saw last when a look takes longer. It changes nothing but two tables:
// health_condition keeps since when something has been so where nothing else tells it, over looks, servers and
// restarts, and what a server says of itself that no other one can see, so that all of them show it; and health_ack,
// whether what people have muted has got worse. When PostgreSQL or NATS is unavailable that is a condition like any
// other, and what is known without it is said.
//
// What people have muted, by workqueue/health, stands in a list of its own and counts for nothing until it is
// worse than it was then, and stays so until it is over; what someone has taken says so.
//
// The rules of workqueue/health say what a condition of the database is; judge adds what a server sees for itself, of
// facts that were read before. A Watch is safe for concurrent use.
package health

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// SeverityCounts is how many conditions there are of each severity.
type SeverityCounts struct {
	Info     int `json:"info"`
	Warning  int `json:"warning"`
	Critical int `json:"critical"`
}

// Report is the conditions as of one moment, the worst first.
type Report struct {
	Status     string             `json:"status" enum:"ok,warning,critical" doc:"the worst severity; info is ok"`
	At         time.Time          `json:"at" doc:"when this was so; all who ask within a few seconds share a report"`
	Counts     SeverityCounts     `json:"counts" doc:"of conditions; what is muted does not count, here and in status"`
	Conditions []health.Condition `json:"conditions" doc:"active conditions, the worst first"`
	Muted      []health.Condition `json:"muted" doc:"what is muted, until it gets worse or the time is up"`
	Kinds      []KindSummary      `json:"kinds" doc:"the kinds of conditions, the worst first"`

	// Unseen are kinds of which there may be conditions that were not looked at: those of other servers, and what NATS
	// did not tell. Blind says that PostgreSQL did not answer, so that next to nothing was looked at.
	Unseen []health.Kind `json:"-"`
	Blind  bool          `json:"-"`
	// Cut are kinds of which there may be more conditions than stand here.
	Cut []health.Kind `json:"-"`
}

const okStatus = "ok"

// KindSummary is the conditions of a kind as one.
type KindSummary struct {
	Kind     health.Kind     `json:"kind"`
	Title    string          `json:"title" example:"Failed items: 13 runs, 2,914 items"`
	Severity health.Severity `json:"severity" enum:"info,warning,critical" doc:"the worst"`
	Since    time.Time       `json:"since" doc:"the first"`
	Of       int64           `json:"of" doc:"how many runs, endpoints and so on"`
	Count    int64           `json:"count" doc:"how many items, letters, messages or operations, added up"`
}

// newReport makes one of what is to be seen to and what is muted. more is how many of a kind are not listed.
func newReport(at time.Time, conditions, muted []health.Condition, more map[health.Kind]int64) *Report {
	for _, list := range [][]health.Condition{conditions, muted} {
		slices.SortFunc(list, func(a, b health.Condition) int {
			return cmp.Or(cmp.Compare(b.Severity.Weight(), a.Severity.Weight()), a.Since.Compare(b.Since),
				cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
		})
	}
	r := &Report{Status: okStatus, At: at, Conditions: append([]health.Condition{}, conditions...),
		Muted: append([]health.Condition{}, muted...), Kinds: append([]KindSummary{}, kindsOf(conditions, more)...)}
	for i := range conditions {
		switch conditions[i].Severity {
		case health.Critical:
			r.Counts.Critical++
		case health.Warning:
			r.Counts.Warning++
		case health.Info:
			r.Counts.Info++
		}
	}
	switch {
	case r.Counts.Critical > 0:
		r.Status = string(health.Critical)
	case r.Counts.Warning > 0:
		r.Status = string(health.Warning)
	}
	return r
}

// kindsOf sums conditions up, in the order of the first of each kind.
func kindsOf(conditions []health.Condition, more map[health.Kind]int64) (all []KindSummary) {
	for i := range conditions {
		c := &conditions[i]
		at := slices.IndexFunc(all, func(k KindSummary) bool { return k.Kind == c.Kind })
		if at < 0 {
			at, all = len(all), append(all, KindSummary{Kind: c.Kind, Severity: c.Severity, Since: c.Since, Of: more[c.Kind]})
		}
		k := &all[at]
		k.Of, k.Count = k.Of+c.Of, k.Count+c.Count
		if c.Since.Before(k.Since) {
			k.Since = c.Since
		}
	}
	for i := range all {
		k := &all[i]
		title, of, counted := k.Kind.Words()
		k.Title = title + ": " + many(k.Of, of)
		if counted != "" {
			k.Title += ", " + many(k.Count, counted)
		}
	}
	return all
}

// many is count with the thousands of a large number set apart.
func many(n int64, noun string) string {
	number, rest, _ := strings.Cut(health.Count(n, noun), " ")
	for at := len(number) - 3; at > 0; at -= 3 {
		number = number[:at] + "," + number[at:]
	}
	return number + " " + rest
}

// Stand sets, for those runs of a list that are in progress, why they stand, as far as a look of the last few seconds
// knows: a list does not wait for one. What stands has no forecast.
func (w *Watch) Stand(ctx context.Context, runs []inspect.RunSummary) error {
	if !slices.ContainsFunc(runs, underWay) {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	report, err := w.Report(wait)
	if err != nil {
		return ctx.Err()
	}
	var endpoints []string
	all := slices.Concat(report.Conditions, report.Muted) // what is muted stops runs anyway
	for i := range all {
		if c := &all[i]; c.Stops() == health.StopsEndpoint {
			endpoints = append(endpoints, c.Subject)
		}
	}
	asks, err := inspect.New(w.cfg.Store).Asks(ctx, runs, endpoints)
	if err != nil {
		return err
	}
	for i := range runs {
		if r := &runs[i]; underWay(*r) {
			if r.Blocker = standing(all, r, asks[r.ID]); r.Blocker != nil {
				r.Forecast.Block(r.Blocker.Text)
			}
		}
	}
	return nil
}

func underWay(r inspect.RunSummary) bool { return r.State == "running" && r.Hold == nil }

// standing is the worst that stops a run.
func standing(all []health.Condition, r *inspect.RunSummary, asks []string) *inspect.Blocker {
	for i := range all {
		c := &all[i]
		var stops bool
		switch c.Stops() {
		case health.StopsAll:
			stops = true
		case health.StopsEndpoint:
			stops = slices.Contains(asks, c.Subject) || c.Subject == r.ID.String()
		case health.StopsRun:
			stops = c.Subject == r.ID.String()
		case health.StopsNothing:
		}
		if stops {
			return &inspect.Blocker{Kind: string(c.Kind), Text: c.Title, Since: c.Since}
		}
	}
	return nil
}
