package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue/alert"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/health"
)

// Held is the condition of a run that is held.
func Held(r *health.HeldRun) Condition {
	c := Condition{Kind: heldKind(r.Hold), Severity: Warning, Subject: r.Run.String(), Link: runLink(r.Run),
		Detail: r.Detail}
	name := runName(r.Run, r.Name, r.Plan)
	switch r.Hold {
	case control.HoldThreshold:
		c.Title = "Paused, too many items failed: " + name
		c.Remedy = fmt.Sprintf("See why: `tranche run errors %s`; then go on and allow more: "+
			"`tranche run resume %s --max-failed N`", r.Run, r.Run)
	case control.HoldGuard:
		c.Title = "Paused, its first outcomes plainly failed: " + name
		c.Remedy = fmt.Sprintf("See why: `tranche run errors %s`; then go on: `tranche run resume %s`, or not: "+
			"`tranche run cancel %s`", r.Run, r.Run, r.Run)
	case control.HoldCanary:
		c.Title = "Waits for an approval of its sample: " + name
		c.Remedy = fmt.Sprintf("Look at the sample: `tranche run show %s`; then let the rest go: `tranche run approve %s`",
			r.Run, r.Run)
	case health.Gate:
		c = gate(c, r, name)
	default:
		c.Severity = Info
		c.Title = "Paused by " + r.By + ": " + name
		c.Remedy = fmt.Sprintf("Go on with: `tranche run resume %s`", r.Run)
	}
	return dated(r.Since, c)
}

// gate is the condition of a run of which steps wait for somebody.
func gate(c Condition, r *health.HeldRun, name string) Condition {
	steps, step := "Step "+r.Detail+" waits", r.Detail
	if strings.Contains(step, ", ") {
		steps, step = "Steps "+r.Detail+" wait", "NAME"
	}
	c.Title = steps + " for an approval: " + name
	c.Detail = "All that comes before has ended, and nothing goes on before somebody has looked."
	if r.By != "" {
		c.Detail += " That must not be " + r.By + ", who started the run."
	}
	c.Remedy = fmt.Sprintf("Look at the sample: `tranche run approve %s --step %s --dry-run`; then let it begin: "+
		"`tranche run approve %[1]s --step %[2]s`", r.Run, step)
	return c
}

func heldKind(hold control.Hold) Kind {
	switch hold {
	case control.HoldCanary:
		return RunApproval
	case control.HoldGuard:
		return RunGuard
	case health.Gate:
		return RunGate
	default:
		return RunHeld
	}
}

// Unsealed is the condition of an open run that was not sealed in time, at a time of the database's clock.
func Unsealed(r *health.LateSeal, at time.Time) Condition {
	return dated(r.SealBy, Condition{
		Kind: RunOverdue, Severity: Warning, Subject: r.Run.String(), Link: runLink(r.Run),
		Title: "Not sealed in time: " + runName(r.Run, r.Name, r.Plan),
		Detail: fmt.Sprintf("It is open, holds %s, and should have been sealed %s ago. It cannot complete before.",
			count(r.Items, "item"), ago(at.Sub(r.SealBy))),
		Remedy: fmt.Sprintf("Seal it when all items are there: `tranche run seal %s`; or cancel it: `tranche run cancel %s`",
			r.Run, r.Run),
	})
}

// Late is the condition of a run of a schedule that has not ended by the end of its window.
func Late(s *health.LateRun, at time.Time) Condition {
	return dated(s.DoneBy, Condition{
		Kind: ScheduleLate, Severity: Warning, Subject: s.Run.String(), Link: runLink(s.Run),
		Title: fmt.Sprintf("A run of schedule %s is late", s.Schedule),
		Detail: fmt.Sprintf("It should have ended by %s, %s ago, and has not; what was done: %s.", moment(s.DoneBy),
			ago(at.Sub(s.DoneBy)), s.Did),
		Remedy: fmt.Sprintf("See what it waits for: `tranche run explain %s`; or cancel it: `tranche run cancel %s`", s.Run,
			s.Run),
	})
}

// WillBeLate is the condition of a run of a schedule that, as fast as it goes, ends after its window. It begins when it
// is first seen to be so.
func WillBeLate(s *health.LateRun, name, plan string, at time.Time, left time.Duration) Condition {
	goes := "It is not known when it ends"
	if left > 0 {
		goes = "As fast as it goes, it ends about " + moment(at.Add(left))
	}
	return dated(at, Condition{
		Kind: RunWillBeLate, Severity: Warning, Subject: s.Run.String(), Link: runLink(s.Run),
		Title:  fmt.Sprintf("Will miss its time: %s of schedule %s", runName(s.Run, name, plan), s.Schedule),
		Detail: fmt.Sprintf("%s; it should by %s.", goes, moment(s.DoneBy)),
		Remedy: fmt.Sprintf("See what holds it up: `tranche run explain %s`; let it go faster: `tranche run set %s`", s.Run,
			s.Run),
	})
}

// Completed says that a run has completed. It is no condition of a [Report].
func Completed(r *alert.Completion) Condition {
	c := Condition{
		Kind: RunCompleted, Severity: Info, Subject: r.Run.String(), Link: runLink(r.Run),
		Title:  "Completed: " + runName(r.Run, r.Name, r.Plan),
		Detail: fmt.Sprintf("%d of %s done.", r.Done, count(r.Items, "item")),
		Remedy: fmt.Sprintf("Nothing; its account is there: `tranche run report %s`", r.Run),
	}
	if r.Failed > 0 {
		c.Severity, c.Title = Warning, fmt.Sprintf("Completed, %s failed: %s", count(r.Failed, "item"),
			runName(r.Run, r.Name, r.Plan))
		c.Link += "/errors"
		c.Remedy = fmt.Sprintf("See why: `tranche run errors %s`; and what helps: `tranche run explain %s`", r.Run, r.Run)
	}
	return dated(r.At, c)
}

// KindSummary is the conditions of a kind as one.
type KindSummary struct {
	Kind     Kind      `json:"kind"`
	Title    string    `json:"title" example:"Failed items: 13 runs, 2,914 items"`
	Severity Severity  `json:"severity" enum:"info,warning,critical" doc:"the worst"`
	Since    time.Time `json:"since" doc:"the first"`
	Of       int64     `json:"of" doc:"how many runs, endpoints and so on"`
	Count    int64     `json:"count" doc:"how many items, letters, messages or operations, added up"`
}

// words are of kinds of which there may be many: what the kind is called, what conditions are about, and what they
// count.
func (k Kind) words() (title, of, counted string) {
	for _, w := range []struct {
		kind               Kind
		title, of, counted string
	}{
		{FailedItems, "Failed items", "run", "item"}, {RunHeld, "Paused", "run", ""},
		{RunGuard, "Paused, first outcomes failed", "run", ""}, {RunGate, "At a gate, waiting for an approval", "run", ""},
		{RunApproval, "Waiting for an approval", "run", ""}, {RunOverdue, "Not sealed in time", "run", ""},
		{StaleSlices, "Past the deadline", "run", ""}, {NoListeners, "Nobody listens", "endpoint", ""},
		{BreakerOpen, "Most requests fail", "endpoint", ""}, {ServiceSlow, "Became slow", "endpoint", ""},
		{DeadLetters, "Dead letters", "endpoint", "letter"},
		{Quarantined, "Messages that could not be taken", "reason", "message"},
		{ScheduleFailing, "Not started by their schedules", "schedule", ""},
		{ScheduleOverdue, "Due and not started", "schedule", ""}, {ScheduleLate, "Late", "run", ""},
		{CollectorParked, "Parked operations", "collector", "operation"},
		{CollectorLate, "Operations that wait for too long", "collector", ""},
		{CollectorHangs, "Flushes that hang", "collector", ""},
		{CollectorRefuses, "Adds that are refused", "collector", ""}, {NodeDead, "Died", "node", ""},
		{NodeLate, "Not heard of", "node", ""}, {TokenExpiring, "About to expire", "token", ""},
		{AlertFailing, "Nobody hears of them", "alert", ""},
	} {
		if w.kind == k {
			return w.title, w.of, w.counted
		}
	}
	name := strings.ReplaceAll(string(k), "_", " ")
	return strings.ToUpper(name[:1]) + name[1:], "condition", ""
}

// kindsOf sums conditions up, in the order of the first of each kind.
func kindsOf(conditions []Condition, more map[Kind]int64) (all []KindSummary) {
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
		title, of, counted := k.Kind.words()
		k.Title = title + ": " + many(k.Of, of)
		if counted != "" {
			k.Title += ", " + many(k.Count, counted)
		}
	}
	return all
}

// many is count with the thousands of a large number set apart.
func many(n int64, noun string) string {
	number, rest, _ := strings.Cut(count(n, noun), " ")
	for at := len(number) - 3; at > 0; at -= 3 {
		number = number[:at] + "," + number[at:]
	}
	return number + " " + rest
}
