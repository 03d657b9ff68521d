package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue/health"
)

// Severity says how much a condition matters.
type Severity string

// Severities.
const (
	Info     Severity = "info"     // good to know; somebody may have wanted it so
	Warning  Severity = "warning"  // somebody has to see to it, and it can wait
	Critical Severity = "critical" // work stands still, or is about to
)

// Least reports whether a severity is another one at least.
func (s Severity) Least(other Severity) bool { return s.weight() >= other.weight() }

func (s Severity) weight() int { return slices.Index([]Severity{Info, Warning, Critical}, s) }

// Kind says what a condition is about.
type Kind string

// Kinds of conditions.
const (
	FailedItems   Kind = "failed_items"   // of completed runs, that nobody has run again or accepted
	StaleSlices   Kind = "stale_slices"   // past their deadline, and no leader has seen to them
	NoListeners   Kind = "no_listeners"   // runs have work for an endpoint or a function, and nobody does it
	OldestWaiting Kind = "oldest_waiting" // items, or requests, that nobody has taken for long
	DeadLetters   Kind = "dead_letters"
	Quarantined   Kind = "quarantined"
	BreakerOpen   Kind = "breaker_open"
	ServiceSlow   Kind = "service_slow" // it takes far longer for an item than before
	LeaderMissing Kind = "leader_missing"
	NodeDead      Kind = "node_dead"
	NodeLate      Kind = "node_late"
	StreamLimit   Kind = "stream_limit"
	Disk          Kind = "disk"
	// StreamSettings is that the streams are not as they are set.
	StreamSettings Kind = "stream_settings"
	RunHeld        Kind = "run_held"     // by its threshold, or by somebody
	RunApproval    Kind = "run_approval" // its canary waits for somebody
	RunGuard       Kind = "run_guard"    // by its guard: its first outcomes plainly failed
	RunGate        Kind = "run_gate"     // a step of it waits for somebody
	RunOverdue     Kind = "run_overdue"
	// RunWillBeLate and RunCompleted stand in alerts only.
	RunWillBeLate Kind = "run_will_be_late"
	RunCompleted  Kind = "run_completed"

	ScheduleFailing Kind = "schedule_failing" // the run of its last due time could not be started
	ScheduleOverdue Kind = "schedule_overdue" // a due time that nobody takes, or whose run is not started
	ScheduleLate    Kind = "schedule_late"    // a run has not ended by the end of its window

	CollectorParked Kind = "collector_parked" // operations that are not tried again
	CollectorLate   Kind = "collector_late"   // operations that wait far longer than max_age
	CollectorHangs  Kind = "collector_hangs"  // a flush that is under way for far too long
	// CollectorRefuses is that what a collector stores with operations cannot be had.
	CollectorRefuses Kind = "collector_refuses"

	AlertFailing Kind = "alert_failing" // a receiver of alerts has not been told for long

	Database      Kind = "database"
	DatabaseGap   Kind = "database_gap" // it went back in time, or another server took it over
	Connections   Kind = "database_connections"
	NATS          Kind = "nats"
	Shortage      Kind = "shortage" // something was used up when the node last needed it
	EventsWaiting Kind = "events_waiting"
	TokenExpiring Kind = "token_expiring" //nolint:gosec // a word
)

// Condition is something that a person should see to.
type Condition struct {
	Kind     Kind      `json:"kind" doc:"in one word, like failed_items or no_listeners; new ones may come"`
	Severity Severity  `json:"severity" enum:"info,warning,critical"`
	Subject  string    `json:"subject" doc:"of what: the id of a run, the name of an endpoint, a node, a stream, a host"`
	Title    string    `json:"title"`
	Detail   string    `json:"detail"`
	Since    time.Time `json:"since"`
	Remedy   string    `json:"remedy" doc:"what helps; commands stand between backquotes"`
	Link     string    `json:"link,omitempty" doc:"path of the dashboard's page about it"`
	Count    int64     `json:"count" doc:"how many items, dead letters, messages or operations it is about, or 1"`
	Of       int64     `json:"of" doc:"how many runs, endpoints and so on it stands for, mostly 1"`
	Mark     *Mark     `json:"mark,omitempty" doc:"what somebody said of it; absent: nothing"`

	unkept bool // nothing tells since when: it has to be kept
}

func (c *Condition) key() health.ConditionKey {
	return health.ConditionKey{Kind: string(c.Kind), Subject: c.Subject}
}

// SeverityCounts is how many conditions there are of each severity.
type SeverityCounts struct {
	Info     int `json:"info"`
	Warning  int `json:"warning"`
	Critical int `json:"critical"`
}

// Report is the conditions as of one moment, the worst first.
type Report struct {
	Status     string         `json:"status" enum:"ok,warning,critical" doc:"the worst severity; what only informs is ok"`
	At         time.Time      `json:"at" doc:"when this was so; a report is shared by all who ask within a few seconds"`
	Counts     SeverityCounts `json:"counts" doc:"of conditions; what is put aside does not count, here and in status"`
	Conditions []Condition    `json:"conditions" doc:"what is to be seen to, the worst first"`
	Aside      []Condition    `json:"aside" doc:"what is put aside, until it gets worse or the time is up"`
	Kinds      []KindSummary  `json:"kinds" doc:"the kinds of conditions, the worst first"`

	// Unseen are kinds of which there may be conditions that were not looked at: those of other servers, and what NATS
	// did not tell. Blind says that PostgreSQL did not answer, so that next to nothing was looked at.
	Unseen []Kind `json:"-"`
	Blind  bool   `json:"-"`
	// Cut are kinds of which there may be more conditions than stand here.
	Cut []Kind `json:"-"`
}

const okStatus = "ok"

// newReport makes one of what is to be seen to and what is put aside. more is how many of a kind are not listed.
func newReport(at time.Time, conditions, aside []Condition, more map[Kind]int64) *Report {
	for _, list := range [][]Condition{conditions, aside} {
		slices.SortFunc(list, func(a, b Condition) int {
			return cmp.Or(cmp.Compare(b.Severity.weight(), a.Severity.weight()), a.Since.Compare(b.Since),
				cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
		})
	}
	r := &Report{Status: okStatus, At: at, Conditions: append([]Condition{}, conditions...),
		Aside: append([]Condition{}, aside...), Kinds: append([]KindSummary{}, kindsOf(conditions, more)...)}
	for i := range conditions {
		switch conditions[i].Severity {
		case Critical:
			r.Counts.Critical++
		case Warning:
			r.Counts.Warning++
		case Info:
			r.Counts.Info++
		}
	}
	switch {
	case r.Counts.Critical > 0:
		r.Status = string(Critical)
	case r.Counts.Warning > 0:
		r.Status = string(Warning)
	}
	return r
}
