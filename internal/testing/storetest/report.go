package storetest

import (
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/report"
)

// Report returns the report of a run, of which it checks that the sums are right.
func (b *Bench) Report(run workqueue.RunID) report.RunReport {
	b.Helper()
	r, err := report.New(b.Store).Report(b.Context(), run)
	if err != nil {
		b.Fatal(err)
	}
	sum := r.Done + r.Failed
	for _, u := range r.Unprocessed {
		sum += u.Items
		if u.Items <= 0 {
			b.Errorf("%d items are %s", u.Items, u.State)
		}
	}
	groups := r.Errors.MoreItems
	for i := range r.Errors.Groups {
		if g := &r.Errors.Groups[i]; !g.Optional {
			groups += g.Count
		}
	}
	if sum != r.Items || groups != r.Failed {
		b.Errorf("the counts are %d of %d items, the groups %d of %d failed", sum, r.Items, groups, r.Failed)
	}
	return r
}
