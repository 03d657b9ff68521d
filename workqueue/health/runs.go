package health

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// runRow is a run that something is said of.
type runRow struct {
	Run  workqueue.RunID
	Name string
	Plan string
}

// String is the run for people.
func (r *runRow) String() string {
	if r.Name == "" {
		return fmt.Sprintf("run %s of %s", r.Run.String()[:8], r.Plan)
	}
	return "run " + r.Name
}

// failedRun is a completed run with failed items that no one has run again, or accepted. Failed and Items leave out
// those that are accepted; Runs and Items are those of all such runs.
type failedRun struct {
	runRow

	Failed     int64
	FinishedAt time.Time
	Runs       int64
	Items      int64
}

// Not waits: how far back failed runs are told of.
const failedWindow = 14 * 24 * time.Hour

// batchrun_failed finds them.
const healthFailed = `
SELECT id, coalesce(name, ''), plan, failed - accepted, finished_at, count(*) OVER (),
    (sum(failed - accepted) OVER ())::bigint
FROM batchrun
WHERE state = 'completed' AND failed > accepted AND finished_at > tranche_now() - $1::interval
ORDER BY id DESC LIMIT $2`

// failedRuns tells of runs that ended with failures that no one has accepted. A re-run opens the run again, and takes
// its condition away.
func failedRuns() query {
	return all(healthFailed, []any{failedWindow, listed}, func(f *Facts, rows []failedRun) (all []Condition) {
		var runs, items int64
		for i := range rows {
			r := &rows[i]
			if i == 0 {
				items = r.Items
			}
			runs, items = r.Runs-int64(i)-1, items-r.Failed
			all = append(all, Condition{
				Subject: r.Run.String(), Since: r.FinishedAt, Link: runLink(r.Run.String()) + "/errors", Count: r.Failed,
				Title: fmt.Sprintf("%s failed: %s", Count(r.Failed, "item"), r),
				Detail: fmt.Sprintf("The run completed %s ago, and no one has run its failed items again, or accepted them.",
					Ago(f.At.Sub(r.FinishedAt))),
				Remedy: againstFailures(r.Run, nil),
			})
		}
		if runs > 0 {
			all = append(all, Condition{
				Subject: "older runs", Since: rows[len(rows)-1].FinishedAt, Link: "/runs?state=completed", Of: runs, Count: items,
				Title:  fmt.Sprintf("%s failed in %s before those", Count(items, "item"), Count(runs, "more run")),
				Detail: "They completed within the last two weeks, and no one has run their failed items again, or accepted them.",
				Remedy: "List them: `tranche run list --state completed`",
			})
		}
		return all
	})
}

// againstFailures is what helps a run: a re-run of what failed, or the reset of a step whose part is bad.
func againstFailures(run workqueue.RunID, bad *inspect.BadPart) string {
	again := fmt.Sprintf("then run them again: `tranche run rerun %s --failed`", run)
	if bad != nil {
		again = fmt.Sprintf("%s: %#q", bad.Why(), bad.Command())
	}
	return fmt.Sprintf("See why: `tranche run errors %s`; %s, correct their data where that is wrong: "+
		"`tranche run correct %[1]s --items FILE`, or accept them: `tranche run accept %[1]s --failed --reason TEXT`", run,
		again)
}

// maxResets bounds the failed runs, the newest, of which adviseResets reads parts.
const maxResets = 100

// adviseResets has the parts made again for which items failed: a re-run would give them the same parts.
func (s Store) adviseResets(ctx context.Context, f *Facts) error {
	failed := newestFailed(f.Conditions)
	if len(failed) == 0 {
		return nil
	}
	bad, err := inspect.ReadBadParts(ctx, s.db.Pool, slices.Collect(maps.Keys(failed)))
	for i := range bad {
		if c := failed[bad[i].Run]; !c.Resets { // the first says it
			c.Remedy, c.Resets = againstFailures(bad[i].Run, &bad[i]), true
		}
	}
	return err
}

// newestFailed finds the conditions of failed runs, up to maxResets.
func newestFailed(all []Condition) map[workqueue.RunID]*Condition {
	failed := map[workqueue.RunID]*Condition{}
	for i := range all {
		c := &all[i]
		if id, err := uuid.Parse(c.Subject); err == nil && c.Kind == FailedItems && len(failed) < maxResets {
			failed[workqueue.RunID(id)] = c
		}
	}
	return failed
}

// heldRun is a run that is paused. Runs counts those held for the same reason.
type heldRun struct {
	runRow

	Hold   control.Hold
	Detail string
	Since  time.Time
	By     string
	Runs   int64
}

// gate stands for the hold of a run that is not held, and of which steps wait for someone: Detail names them, and By
// is who must not approve; empty: anybody may.
const gate control.Hold = "gate"

// batchrun_active, and run_step_barrier for the steps that wait; a few of each reason.
const healthHeld = `
SELECT id, name, plan, hold, hold_detail, held_at, held_by, runs FROM (
    SELECT id, name, plan, hold, hold_detail, held_at, held_by,
        count(*) OVER (PARTITION BY hold) AS runs, row_number() OVER (PARTITION BY hold ORDER BY held_at, id) AS n
    FROM (
        SELECT id, coalesce(name, '') AS name, plan, hold, hold_detail, held_at, held_by
        FROM batchrun WHERE state = 'running' AND hold IS NOT NULL
        UNION ALL
        SELECT r.id, coalesce(r.name, ''), r.plan, 'gate', string_agg(st.name, ', ' ORDER BY st.step),
            min(st.gate_since), CASE WHEN bool_or(st.approval = 'other') THEN r.created_by ELSE '' END
        FROM batchrun r JOIN run_step st ON st.run_id = r.id AND st.barrier AND NOT st.barrier_passed
        WHERE r.state = 'running' AND st.gate_since IS NOT NULL GROUP BY r.id) w) h
WHERE n <= $1 ORDER BY held_at, id`

// heldRuns tells of runs that are paused, and of steps that wait for someone.
func heldRuns() query { return all(healthHeld, []any{listed}, conditionsOfHeld) }

func conditionsOfHeld(f *Facts, rows []heldRun) (all []Condition) {
	counted := map[control.Hold]bool{} // several are of one kind
	for i := range rows {
		r := &rows[i]
		c := r.condition()
		all = append(all, c)
		f.More[c.Kind]--
		if !counted[r.Hold] {
			counted[r.Hold] = true
			f.More[c.Kind] += r.Runs
		}
	}
	return all
}

func (r *heldRun) condition() Condition {
	c := Condition{Kind: RunHeld, Subject: r.Run.String(), Since: r.Since, Detail: r.Detail}
	switch r.Hold {
	case control.HoldThreshold:
		c.Title = "Paused, too many items failed: " + r.String()
		c.Remedy = fmt.Sprintf("See why: `tranche run errors %s`; then go on and allow more: "+
			"`tranche run resume %[1]s --max-failed N`", r.Run)
	case control.HoldFailFast:
		c.Kind, c.Title = RunFailFast, "Paused, its first outcomes plainly failed: "+r.String()
		c.Remedy = fmt.Sprintf("See why: `tranche run errors %s`; then go on: `tranche run resume %[1]s`, or not: "+
			"`tranche run cancel %[1]s`", r.Run)
	case control.HoldCanary:
		c.Kind, c.Title = RunApproval, "Waits for an approval of its sample: "+r.String()
		c.Remedy = fmt.Sprintf("Look at the sample: `tranche run show %s`; then let the rest go: `tranche run approve %[1]s`",
			r.Run)
	case gate:
		r.atGate(&c)
	default:
		c.Severity, c.Title = Info, "Paused by "+r.By+": "+r.String()
		c.Remedy = fmt.Sprintf("Go on with: `tranche run resume %s`", r.Run)
	}
	return c
}

// atGate tells of a run of which steps wait for someone.
func (r *heldRun) atGate(c *Condition) {
	steps, step := "Step "+r.Detail+" waits", r.Detail
	if strings.Contains(step, ", ") {
		steps, step = "Steps "+r.Detail+" wait", "NAME"
	}
	c.Kind, c.Title = RunGate, steps+" for an approval: "+r.String()
	c.Detail = "All that comes before has ended, and nothing goes on before someone has looked."
	if r.By != "" {
		c.Detail += " That must not be " + r.By + ", who started the run."
	}
	c.Remedy = fmt.Sprintf("Look at the sample: `tranche run approve %s --step %s --dry-run`; then let it begin: "+
		"`tranche run approve %[1]s --step %[2]s`", r.Run, step)
}

// unsealedRun is an open run that was not sealed in time.
type unsealedRun struct {
	runRow

	SealDeadline time.Time
	Items        int64
}

// batchrun_active.
const healthOverdue = `
SELECT id, coalesce(name, ''), plan, seal_deadline, items FROM batchrun
WHERE state = 'running' AND opened AND sealed_at IS NULL AND seal_deadline <= tranche_now()
ORDER BY seal_deadline, id LIMIT $1`

// unsealedRuns tells of open runs that were not sealed in time.
func unsealedRuns() query {
	return each(healthOverdue, []any{listed}, func(f *Facts, r *unsealedRun) Condition {
		return Condition{
			Subject: r.Run.String(), Since: r.SealDeadline, Title: "Not sealed in time: " + r.String(),
			Detail: fmt.Sprintf("It is open, holds %s, and should have been sealed %s ago. It cannot complete before.",
				Count(r.Items, "item"), Ago(f.At.Sub(r.SealDeadline))),
			Remedy: fmt.Sprintf("Seal it when all items are there: `tranche run seal %s`; or cancel it: "+
				"`tranche run cancel %[1]s`", r.Run),
		}
	})
}

// WillBeLate is the condition of a run of a schedule that, as fast as it goes, ends after its window. It begins when it
// is first seen to be so.
func WillBeLate(
	run workqueue.RunID, name, plan, schedule string, endDeadline, at time.Time, left time.Duration,
) Condition {
	goes := "It is not known when it ends"
	if left > 0 {
		goes = "As fast as it goes, it ends about " + moment(at.Add(left))
	}
	return Condition{
		Kind: RunWillBeLate, Subject: run.String(), Since: at,
		Title:  fmt.Sprintf("Will miss its time: %s of schedule %s", &runRow{run, name, plan}, schedule),
		Detail: fmt.Sprintf("%s; it should by %s.", goes, moment(endDeadline)),
		Remedy: fmt.Sprintf("See what holds it up: `tranche run explain %s`; let it go faster: `tranche run set %[1]s`", run),
	}.Filled()
}

// Completed says that a run has completed: alerts tell it, and no report.
func Completed(run workqueue.RunID, name, plan string, done, failed, items int64, at time.Time) Condition {
	c := Condition{
		Kind: RunCompleted, Severity: Info, Owner: OwnerNobody, Subject: run.String(), Since: at,
		Title:  "Completed: " + (&runRow{run, name, plan}).String(),
		Detail: fmt.Sprintf("%d of %s done.", done, Count(items, "item")),
		Remedy: fmt.Sprintf("Nothing; its account is there: `tranche run report %s`", run),
	}
	if failed > 0 {
		c.Severity, c.Owner, c.Link = Warning, OwnerOperator, runLink(c.Subject)+"/errors"
		c.Title = fmt.Sprintf("Completed, %s failed: %s", Count(failed, "item"), &runRow{run, name, plan})
		c.Remedy = fmt.Sprintf("See why: `tranche run errors %s`; and what helps: `tranche run explain %[1]s`", run)
	}
	return c.Filled()
}
