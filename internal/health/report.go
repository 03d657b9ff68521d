// Package health says what a person must see to: conditions of runs, endpoints, nodes, streams and disks, each with its
// severity, since when it has been so, and what helps.
//
// A [Watch] looks at PostgreSQL, NATS and the machine at most every few seconds, however many ask, and answers within
// a fraction of a second from what it saw last when a look takes longer. It changes nothing but two tables:
// health_condition keeps since when something has been so where nothing else tells it, over looks, servers and
// restarts, and what a server says of itself that no other one can see, so that all of them show it; and health_mark,
// whether what people have put aside has got worse. When PostgreSQL or NATS is away that is a condition like any
// other, and what is known without it is said.
//
// What people have put aside, by workqueue/health, stands in a list of its own and counts for nothing until it is
// worse than it was then, and stays so until it is over; what somebody has taken says so.
//
// What a condition means and when it begins is decided by judge, of facts that were read before: it asks nobody. A
// Watch is safe for concurrent use.
package health

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
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
	Resets   bool      `json:"resets,omitempty" doc:"a step has to be reset, as remedy says: a re-run would fail again"`
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

// Stand sets, for those runs of a list that are under way, why they stand, as far as a look of the last few seconds
// knows: a list does not wait for one. What stands has no time to go.
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
	all := slices.Concat(report.Conditions, report.Aside) // what is put aside stops runs all the same
	for i := range all {
		if c := &all[i]; c.stops() == oneEndpoint {
			endpoints = append(endpoints, c.Subject)
		}
	}
	asks, err := inspect.New(w.cfg.Store).Asks(ctx, runs, endpoints)
	if err != nil {
		return err
	}
	for i := range runs {
		if r := &runs[i]; underWay(*r) {
			if r.Stands = standing(all, r, asks[r.ID]); r.Stands != nil {
				r.ETASeconds = nil
			}
		}
	}
	return nil
}

func underWay(r inspect.RunSummary) bool { return r.State == "running" && r.Hold == nil }

// standing is the worst that stops a run.
func standing(all []Condition, r *inspect.RunSummary, asks []string) *inspect.Obstacle {
	for i := range all {
		c := &all[i]
		var stops bool
		switch c.stops() {
		case everything:
			stops = true
		case oneEndpoint:
			stops = slices.Contains(asks, c.Subject) || c.Subject == r.ID.String()
		case oneRun:
			stops = c.Subject == r.ID.String()
		case nothing:
		}
		if stops {
			return &inspect.Obstacle{Kind: string(c.Kind), Text: c.Title, Since: c.Since}
		}
	}
	return nil
}

// reach is what a condition stops.
type reach int

const (
	nothing reach = iota
	oneRun
	oneEndpoint // or one run
	everything
)

func (c *Condition) stops() reach {
	switch c.Kind {
	case NoListeners, BreakerOpen, OldestWaiting:
		return oneEndpoint
	case StaleSlices:
		return oneRun
	case LeaderMissing:
		return everything
	case NATS:
		if c.Subject == jetStream {
			return everything
		}
	}
	return nothing
}

// fill is how much of something that is limited is used.
type fill struct {
	subject string // a stream, or the account
	what    string
	used    uint64
	limit   uint64
	bytes   bool
}

func (f *fill) share() float64 { return float64(f.used) / float64(f.limit) }

// streamPrefix is how the names of our streams begin.
const streamPrefix = "TRANCHE_"

// accountSubject stands for all that the account may use.
const accountSubject = "the account"

// streams asks JetStream how full its streams and our account are.
func (w *Watch) streams(ctx context.Context) (fills []fill, known bool) {
	if !w.cfg.NC.IsConnected() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, natsTimeout)
	defer cancel()
	js, err := jetstream.New(w.cfg.NC)
	if err != nil {
		return nil, false
	}
	add := func(subject, what string, used uint64, limit int64, bytes bool) {
		if limit > 0 {
			fills = append(fills, fill{subject, what, used, uint64(limit), bytes})
		}
	}
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		if name := info.Config.Name; strings.HasPrefix(name, streamPrefix) {
			add(name, "bytes", info.State.Bytes, info.Config.MaxBytes, true)
			add(name, "messages", info.State.Msgs, info.Config.MaxMsgs, false)
			add(name, "consumers", uint64(max(info.State.Consumers, 0)), int64(info.Config.MaxConsumers), false)
		}
	}
	if list.Err() != nil {
		return nil, false
	}
	account, err := js.AccountInfo(ctx)
	if err != nil {
		return nil, false
	}
	add(accountSubject, "storage", account.Store, account.Limits.MaxStore, true)
	add(accountSubject, "memory", account.Memory, account.Limits.MaxMemory, true)
	add(accountSubject, "streams", uint64(max(account.Streams, 0)), int64(account.Limits.MaxStreams), false)
	add(accountSubject, "consumers", uint64(max(account.Consumers, 0)), int64(account.Limits.MaxConsumers), false)
	return fills, true
}
