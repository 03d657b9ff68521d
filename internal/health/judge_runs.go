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
		r := &f.db.Overdue[i]
		all = append(all, dated(r.SealBy, Condition{
			Kind: RunOverdue, Severity: Warning, Subject: r.Run.String(), Link: runLink(r.Run),
			Title: "Not sealed in time: " + runName(r.Run, r.Name, r.Plan),
			Detail: fmt.Sprintf("It is open, holds %s, and should have been sealed %s ago. It cannot complete before.",
				count(r.Items, "item"), ago(f.at.Sub(r.SealBy))),
			Remedy: fmt.Sprintf("Seal it when all items are there: `tranche run seal %s`; or cancel it: `tranche run cancel %s`",
				r.Run, r.Run),
		}))
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

// failed tells of runs that ended with failures. A re-run opens the run again, and takes its condition away.
func (f *facts) failed() (all []Condition) {
	var runs, items int64
	for i := range f.db.Failed {
		r := &f.db.Failed[i]
		runs, items = r.Runs-int64(i)-1, r.Items-r.Failed
		all = append(all, dated(r.FinishedAt, Condition{
			Kind: FailedItems, Severity: Warning, Subject: r.Run.String(), Link: runLink(r.Run) + "/errors",
			Title: fmt.Sprintf("%s failed: %s", count(r.Failed, "item"), runName(r.Run, r.Name, r.Plan)),
			Detail: fmt.Sprintf("The run completed %s ago, and nobody has run its failed items again.",
				ago(f.at.Sub(r.FinishedAt))),
			Remedy: fmt.Sprintf("See why: `tranche run errors %s`; then run them again: `tranche run rerun %s --failed`",
				r.Run, r.Run),
		}))
	}
	for i := range f.db.Failed[:max(len(f.db.Failed)-1, 0)] {
		items -= f.db.Failed[i].Failed
	}
	if runs > 0 {
		all = append(all, dated(f.db.Failed[len(f.db.Failed)-1].FinishedAt, Condition{
			Kind: FailedItems, Severity: Warning, Subject: "older runs", Link: "/runs?state=completed",
			Title:  fmt.Sprintf("%s failed in %s before those", count(items, "item"), count(runs, "more run")),
			Detail: "They completed within the last two weeks, and nobody has run their failed items again.",
			Remedy: "List them: `tranche run list --state completed`",
		}))
	}
	return all
}

func (f *facts) held() (all []Condition) {
	for i := range f.db.Held {
		r := &f.db.Held[i]
		c := Condition{Kind: RunHeld, Severity: Warning, Subject: r.Run.String(), Link: runLink(r.Run), Detail: r.Detail}
		name := runName(r.Run, r.Name, r.Plan)
		switch r.Hold {
		case control.HoldThreshold:
			c.Title = "Paused, too many items failed: " + name
			c.Remedy = fmt.Sprintf("See why: `tranche run errors %s`; then go on and allow more: "+
				"`tranche run resume %s --max-failed N`", r.Run, r.Run)
		case control.HoldCanary:
			c.Title = "Waits for an approval of its sample: " + name
			c.Remedy = fmt.Sprintf("Look at the sample: `tranche run show %s`; then let the rest go: `tranche run approve %s`",
				r.Run, r.Run)
		default:
			c.Severity = Info
			c.Title = "Paused by " + r.By + ": " + name
			c.Remedy = fmt.Sprintf("Go on with: `tranche run resume %s`", r.Run)
		}
		if r.Runs > int64(len(f.db.Held)) {
			c.Detail += fmt.Sprintf(" %s are held for this reason.", count(r.Runs, "run"))
		}
		all = append(all, dated(r.Since, c))
	}
	return all
}
