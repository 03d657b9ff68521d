package health

import (
	"fmt"

	"github.com/tranchehq/tranche/workqueue/control"
)

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
			Remedy: fmt.Sprintf("See why: `tranche run errors %s`; then run them again: `tranche run rerun %s --failed`, "+
				"correct their data where that is wrong: `tranche run correct %[1]s --items FILE`, or accept them: "+
				"`tranche run accept %[1]s --failed --reason TEXT`", r.Run, r.Run),
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
