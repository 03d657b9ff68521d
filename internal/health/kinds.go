package health

import (
	"slices"
	"strings"
	"time"
)

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
