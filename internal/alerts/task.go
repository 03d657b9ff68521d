// Package alerts notifies people and programs of conditions and run changes, by rules.
//
// A [LeaderTask] compares the health report and the runs every few seconds with what each rule has reported, and
// creates messages of the difference; another one sends them. Both states are in PostgreSQL
// ([github.com/tranchehq/tranche/workqueue/alert]).
//
// Guarantees: a condition is reported once, in the message of its group, and again when it gets worse or ends. A
// message has the same ID for all attempts; it is resent only if an attempt failed or its outcome is unknown. Texts
// are bounded. A hanging, failing or slow receiver delays no other, and no text, answer, log or error holds secrets.
//
// Not its job: conditions and their remedies (internal/health), and signing webhooks (gather/fetch/httpfetch).
//
// All types are safe for concurrent use once made.
package alerts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/alert"
)

// Names of the leader tasks.
const (
	LookTask = "alerts"
	SendTask = "alert messages"
)

const (
	// lookEvery is the pause between two checks for changes.
	lookEvery = 3 * time.Second
	// noRules is that pause while there are no rules.
	noRules = 5 * time.Second
	// forgetEvery is the pause between two deletions of old messages.
	forgetEvery = time.Hour
)

// Store keeps rules and messages, as workqueue/alert does.
type Store interface {
	Active(ctx context.Context) ([]alert.Rule, error)
	Completions(ctx context.Context, since time.Time) (done []alert.Completion, until time.Time, err error)
	Labels(ctx context.Context, runs []workqueue.RunID) (map[workqueue.RunID]alert.Label, error)
	Now(ctx context.Context) (time.Time, error)
	Note(ctx context.Context, lease workqueue.Lease, look *alert.Look, compose func([]alert.Listed) ([]alert.Message,
		error)) (made int, err error)
	Forget(ctx context.Context, lease workqueue.Lease) error
	Claim(ctx context.Context, lease workqueue.Lease, underWay []string, most int, hold time.Duration) ([]alert.Attempt,
		error)
	Delivered(ctx context.Context, lease workqueue.Lease, a *alert.Attempt, but string) (noted bool, err error)
	Failed(ctx context.Context, lease workqueue.Lease, a *alert.Attempt, f alert.Failure) (noted bool, err error)
}

// TaskConfig configures a LeaderTask.
type TaskConfig struct {
	Store     Store
	Receivers *Receivers
	Health    func(ctx context.Context) (*health.Report, error)
	// Wake makes the leader run a leader task now; nil: it runs at its next interval.
	Wake func(task string)
	Log  *zap.Logger // nil: none

	// FirstRetry is the pause after the first failed attempt; 0: 5 s.
	FirstRetry time.Duration
}

// LeaderTask creates and sends messages while its node leads.
type LeaderTask struct {
	cfg    TaskConfig
	log    *zap.Logger
	lost   map[string]int // versions of unreadable rules, logged once
	forgot time.Time      // the latest deletion of old messages
}

// New returns the leader tasks of a node.
func New(cfg TaskConfig) (*LeaderTask, error) {
	if cfg.Store == nil || cfg.Receivers == nil || cfg.Health == nil {
		return nil, errors.New("alerts: a store, receivers and the health are needed")
	}
	cfg.Log = cmp.Or(cfg.Log, zap.NewNop())
	if cfg.Wake == nil {
		cfg.Wake = func(string) {}
	}
	return &LeaderTask{cfg: cfg, log: cfg.Log, lost: map[string]int{}}, nil
}

// LeaderTasks returns two tasks, so that creating messages does not wait for sending.
func (d *LeaderTask) LeaderTasks() []orchestrator.LeaderTask {
	return []orchestrator.LeaderTask{{Name: LookTask, Run: d.Look}, {Name: SendTask, Run: d.Send}}
}

// Look compares, rule by rule, what should be reported with what was. A failing rule does not delay others.
func (d *LeaderTask) Look(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	defer func() { err = errors.Join(err, d.forget(ctx, lease)) }()
	rules, specs, err := d.rules(ctx)
	if err != nil || len(rules) == 0 {
		return noRules, err
	}
	f, err := d.gather(ctx, rules, specs)
	if err != nil || f == nil {
		return lookEvery, err
	}
	all, made := f.all(), 0
	for i := range rules {
		n, bad := d.note(ctx, lease, &rules[i], specs[i], f, all)
		if errors.Is(bad, workqueue.ErrNotLeader) || ctx.Err() != nil {
			return 0, bad
		}
		made, err = made+n, errors.Join(err, bad)
	}
	if made > 0 {
		d.cfg.Wake(SendTask)
	}
	return lookEvery, err
}

func (d *LeaderTask) forget(ctx context.Context, lease workqueue.Lease) error {
	if time.Since(d.forgot) < forgetEvery {
		return nil
	}
	d.forgot = time.Now()
	return d.cfg.Store.Forget(ctx, lease)
}

func (d *LeaderTask) rules(ctx context.Context) (rules []alert.Rule, specs []*Spec, err error) {
	all, err := d.cfg.Store.Active(ctx)
	for i := range all {
		spec, bad := readSpec(all[i].Name, all[i].Spec)
		if bad == nil {
			rules, specs = append(rules, all[i]), append(specs, spec)
		} else if d.lost[all[i].Name] != all[i].Version {
			d.lost[all[i].Name] = all[i].Version
			d.log.Error("an alert is left out", zap.Error(bad))
		}
	}
	return rules, specs, err
}

func readSpec(name string, text json.RawMessage) (*Spec, error) {
	s := &Spec{}
	err := json.Unmarshal(text, s)
	switch {
	case err != nil:
	case s.To.channel == nil:
		err = errors.New("it says no one to tell")
	case len(s.Runs) == 0 && s.Health == "": // everything it reported would be over, and nothing new reported
		err = errors.New("it says nothing to tell")
	}
	if err != nil {
		return nil, fmt.Errorf("alert %s cannot be read by this version of tranche; apply it again: %w", name, err)
	}
	return s, nil
}

// gather reads all facts. It returns none while PostgreSQL does not answer.
func (d *LeaderTask) gather(ctx context.Context, rules []alert.Rule, specs []*Spec) (f *facts, err error) {
	f = &facts{}
	if f.began, err = d.cfg.Store.Now(ctx); err != nil {
		return nil, err
	}
	if f.report, err = d.cfg.Health(ctx); err != nil || f.report.Blind {
		return nil, err
	}
	var runs []workqueue.RunID
	for _, c := range slices.Concat(f.report.Conditions, f.report.Muted) {
		if id, err := uuid.Parse(c.Subject); err == nil {
			runs = append(runs, workqueue.RunID(id))
		}
	}
	if f.labels, err = d.cfg.Store.Labels(ctx, runs); err != nil {
		return nil, err
	}
	want := wanted(rules, specs)
	if len(want) == 0 {
		return f, nil
	}
	return f, d.gatherRuns(ctx, f, want)
}

// wanted returns the run changes that rules report, and since when any of them does.
func wanted(rules []alert.Rule, specs []*Spec) map[RunChange]time.Time {
	want := map[RunChange]time.Time{}
	for i, spec := range specs {
		for _, change := range spec.Runs {
			if from, known := want[change]; !known || rules[i].From.Before(from) {
				want[change] = rules[i].From
			}
		}
	}
	return want
}

func (d *LeaderTask) gatherRuns(ctx context.Context, f *facts, want map[RunChange]time.Time) (err error) {
	if from, asked := want[RunCompleted]; asked {
		var until time.Time
		if f.completed, until, err = d.cfg.Store.Completions(ctx, from); err != nil {
			return err
		}
		if !until.IsZero() { // there are more: the next check continues here
			f.began = until
		}
	}
	return nil
}

func (d *LeaderTask) note(
	ctx context.Context, lease workqueue.Lease, rule *alert.Rule, spec *Spec, f *facts, all []seen,
) (made int, err error) {
	told := spec.told(rule, all)
	rows, err := noted(told)
	if err != nil {
		return 0, fmt.Errorf("alert %s: %w", rule.Name, err)
	}
	look := &alert.Look{Rule: *rule, Began: f.began, Conditions: rows, Wait: time.Duration(spec.Wait),
		Interval: time.Duration(spec.Interval), Quiet: spec.Quiet.At(f.began), Holds: spec.holds(all),
		Muted: spec.isMuted(all)}
	for _, kind := range f.report.Unseen {
		look.Unseen = append(look.Unseen, string(kind))
	}
	for _, kind := range f.report.Cut {
		look.Cut = append(look.Cut, string(kind), runPrefix+kind.Rule().Change)
	}
	return d.cfg.Store.Note(ctx, lease, look, func(listed []alert.Listed) ([]alert.Message, error) {
		return compose(rule.Name, f.began, listed, told)
	})
}

const (
	// sendLook is the interval for checking for due messages.
	sendLook = time.Second
	// attemptsAtOnce limits concurrent attempts; each rule has one at most.
	attemptsAtOnce = 128
	// attemptHold is when an attempt is retried whose leader died before recording its outcome.
	attemptHold = 30 * time.Second
	// firstRetry is the pause after the first failed attempt. It doubles up to longestRetry; a Retry-After can lengthen
	// it up to that.
	firstRetry   = 5 * time.Second
	longestRetry = 10 * time.Minute
	// messageTimeout is how long a message is retried, and messageAttempts the minimum number of attempts. After it is
	// dropped, conditions that still hold are reported again.
	messageTimeout  = 24 * time.Hour
	messageAttempts = 12
)

// Send attempts everything due until nothing is. Attempts are independent: a hanging receiver delays only its own
// rule's messages. An attempt and its outcome are recorded under the lease. Send returns when all attempts have
// ended, also after an error.
func (d *LeaderTask) Send(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	under := map[string]bool{} // rules with an attempt in progress
	ended := make(chan ended, attemptsAtOnce)
	look := time.NewTicker(sendLook)
	defer look.Stop()
	for {
		if ctx.Err() == nil { // failed claims are repeated at the next tick, even while an attempt hangs
			if failed := d.begin(ctx, lease, under, ended); err == nil {
				err = failed
			}
		}
		if len(under) == 0 {
			return sendLook, err
		}
		select {
		case e := <-ended:
			delete(under, e.rule)
			if err == nil {
				err = e.err
			}
		case <-look.C:
		}
	}
}

type ended struct {
	rule string
	err  error // the outcome could not be recorded
}

func (d *LeaderTask) begin(ctx context.Context, lease workqueue.Lease, under map[string]bool, done chan<- ended) error {
	room := attemptsAtOnce - len(under)
	if room <= 0 {
		return nil
	}
	due, err := d.cfg.Store.Claim(ctx, lease, slices.Collect(maps.Keys(under)), room, d.hold())
	if err != nil {
		return err
	}
	for i := range due {
		a := &due[i]
		under[a.Alert] = true
		go func() { done <- ended{a.Alert, d.survive(a, func() error { return d.attempt(ctx, lease, a) })} }()
	}
	return nil
}

func (d *LeaderTask) hold() time.Duration { return attemptHold + d.cfg.Receivers.timeout }

// survive turns a panic of an attempt into an error of the leader task, whose recover is in another goroutine.
func (d *LeaderTask) survive(a *alert.Attempt, attempt func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("an attempt at a message panicked", zap.String("alert", a.Alert), zap.Any("panic", p),
				zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("an attempt at a message of alert %s: panic: %v", a.Alert, p)
		}
	}()
	return attempt()
}

func (d *LeaderTask) attempt(ctx context.Context, lease workqueue.Lease, a *alert.Attempt) error {
	came := d.tell(ctx, a)
	if ctx.Err() != nil {
		return ctx.Err() // interrupted; the next leader retries it
	}
	log := d.log.With(zap.String("alert", a.Alert), zap.Stringer("message", a.Message), zap.Int("attempt", a.Number))
	if came.Delivered {
		noted, err := d.cfg.Store.Delivered(ctx, lease, a, came.Reason())
		if noted {
			log.Debug("message delivered")
		}
		return err
	}
	retry := httpfetch.Retry{First: d.cfg.FirstRetry, Longest: longestRetry}
	if retry.First <= 0 {
		retry.First = firstRetry
	}
	failure := alert.Failure{Reason: came.Reason(), Pause: retry.In(a.Failures+1, came.Wait),
		GiveUp: came.GiveUp || a.Test || a.Age >= messageTimeout && a.Number >= messageAttempts}
	noted, err := d.cfg.Store.Failed(ctx, lease, a, failure)
	if noted && (a.Failures == 0 || failure.GiveUp) {
		log.Warn("notify a receiver", zap.String("why", came.Why), zap.Bool("given_up", failure.GiveUp))
	}
	return err
}

func (d *LeaderTask) tell(ctx context.Context, a *alert.Attempt) httpfetch.Delivery {
	spec, err := readSpec(a.Alert, a.Spec)
	if err != nil {
		return httpfetch.Delivery{Why: err.Error()}
	}
	m, err := read(a, d.cfg.Receivers.public)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	return d.cfg.Receivers.tell(ctx, &spec.To, m)
}
