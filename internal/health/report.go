// Package health reports conditions that need an operator: of runs, endpoints, nodes, streams and disks, each with
// severity, begin and remedy.
//
// A [Watch] checks PostgreSQL, NATS and the machine at most every few seconds, however many callers ask. If a check
// takes longer, it answers from the previous one within a fraction of a second. It writes only two tables.
// health_condition keeps begins that nothing else records, across checks, servers and restarts, and what only one
// server sees of itself, so that all can show it. health_ack keeps whether muted conditions got worse. An unavailable
// PostgreSQL or NATS is a condition itself, and the rest is still reported.
//
// Muted conditions (workqueue/health) are listed separately and do not count until they get worse, and then until
// they are over. Acknowledged ones are marked.
//
// The rules of workqueue/health define the database's conditions; judge adds what a server sees itself, from facts
// read before. A Watch is safe for concurrent use.
package health

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// SeverityCounts counts conditions by severity.
type SeverityCounts struct {
	Info     int `json:"info"`
	Warning  int `json:"warning"`
	Critical int `json:"critical"`
}

// Report is the conditions at one moment, worst first.
type Report struct {
	Status     string             `json:"status" enum:"ok,warning,critical" doc:"the worst severity; info is ok"`
	At         time.Time          `json:"at" doc:"when this was true; calls within a few seconds share a report"`
	Counts     SeverityCounts     `json:"counts" doc:"of conditions; what is muted does not count, here and in status"`
	Conditions []health.Condition `json:"conditions" doc:"active conditions, the worst first"`
	Muted      []health.Condition `json:"muted" doc:"what is muted, until it gets worse or the time is up"`
	Kinds      []KindSummary      `json:"kinds" doc:"the kinds of conditions, the worst first"`

	// Unseen are kinds that were not fully checked: those of other servers, and what NATS did not answer. Blind means
	// that PostgreSQL did not answer, so almost nothing was checked.
	Unseen []health.Kind `json:"-"`
	Blind  bool          `json:"-"`
	// Cut are kinds with more conditions than listed.
	Cut []health.Kind `json:"-"`
}

const okStatus = "ok"

// KindSummary summarizes the conditions of a kind.
type KindSummary struct {
	Kind     health.Kind     `json:"kind"`
	Title    string          `json:"title" example:"Failed items: 13 runs, 2,914 items"`
	Severity health.Severity `json:"severity" enum:"info,warning,critical" doc:"the worst"`
	Since    time.Time       `json:"since" doc:"the first"`
	Of       int64           `json:"of" doc:"how many runs, endpoints and so on"`
	Count    int64           `json:"count" doc:"how many items, letters, messages or operations, added up"`
}

// VisibleReport is Report for a context's [workqueue.Scope]: if that is limited, it has only conditions of single runs
// in it.
func (w *Watch) VisibleReport(ctx context.Context) (*Report, error) {
	found, err := w.Report(ctx)
	if err != nil || workqueue.Namespaces(ctx) == nil {
		return found, err
	}
	var ids []workqueue.RunID
	for _, c := range slices.Concat(found.Conditions, found.Muted) {
		var id workqueue.RunID
		if id.UnmarshalText([]byte(c.Subject)) == nil {
			ids = append(ids, id)
		}
	}
	seen, err := inspect.New(w.cfg.Store).Visible(ctx, ids)
	if err != nil {
		return nil, err
	}
	of := func(all []health.Condition) []health.Condition {
		return slices.DeleteFunc(slices.Clone(all), func(c health.Condition) bool { return !seen[c.Subject] })
	}
	return newReport(found.At, of(found.Conditions), of(found.Muted), nil), nil
}

// newReport makes a report. more is the number of unlisted conditions per kind.
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
		k.Title = title + ": " + health.Count(k.Of, of)
		if counted != "" {
			k.Title += ", " + health.Count(k.Count, counted)
		}
	}
	return all
}

// Foretold returns the 50 most urgent active runs with forecasts. Blocked runs have none.
func (w *Watch) Foretold(ctx context.Context) ([]inspect.RunSummary, error) {
	runs, err := inspect.New(w.cfg.Store).Foretold(ctx)
	if err == nil {
		err = w.Stand(ctx, runs)
	}
	return runs, err
}

// Stand sets the blockers of the active runs of a list, as found by a check of the last seconds: a list does not wait
// for one. Blocked runs have no forecast.
func (w *Watch) Stand(ctx context.Context, runs []inspect.RunSummary) error {
	if !slices.ContainsFunc(runs, underWay) {
		return nil
	}
	all, err := w.soon(ctx)
	if all == nil || err != nil {
		return err
	}
	for i := range all {
		if all[i].Stops() == health.StopsAll && workqueue.Namespaces(ctx) != nil {
			all[i].Title, _, _ = all[i].Kind.Words() // the rest is about the installation
		}
	}
	asks, err := inspect.New(w.cfg.Store).Asks(ctx, runs, stalled(all).Endpoints)
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

// soon returns all conditions as found by a check of the last seconds, or none if that takes too long.
func (w *Watch) soon(ctx context.Context) ([]health.Condition, error) {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	report, err := w.Report(wait)
	if err != nil {
		return nil, ctx.Err()
	}
	return slices.Concat(report.Conditions, report.Muted), nil // muted conditions block runs too
}

// Stalled names what Stand would find blocked, in any list.
func (w *Watch) Stalled(ctx context.Context) (*inspect.Stalled, error) {
	all, err := w.soon(ctx)
	return stalled(all), err
}

func stalled(all []health.Condition) *inspect.Stalled {
	s := &inspect.Stalled{}
	for i := range all {
		c := &all[i]
		var run workqueue.RunID
		err := run.UnmarshalText([]byte(c.Subject))
		switch stops := c.Stops(); {
		case stops == health.StopsAll:
			s.All = true
		case stops != health.StopsNothing && err == nil:
			s.Runs = append(s.Runs, run)
		case stops == health.StopsEndpoint:
			s.Endpoints = append(s.Endpoints, c.Subject)
		}
	}
	return s
}

func underWay(r inspect.RunSummary) bool { return r.State == "running" && r.Hold == nil }

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
