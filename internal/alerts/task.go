// Package alerts tells people, and programs, what they must see to: rules say of what, and whom.
//
// A [LeaderTask] of the leader's looks every few seconds at the health report and at runs, compares that with what each
// rule has told, and makes messages of the difference; another sends them. What was told, and what waits to be, stands
// in PostgreSQL ([github.com/tranchehq/tranche/workqueue/alert]).
//
// Guarantees: a condition is told once, in the message of its group, and again when it gets worse or is over. A
// message has one id for all its attempts; it is sent again only when no one knows what came of an attempt, or it
// failed. Texts are bounded, whatever there is to tell. A receiver that hangs, fails or answers slowly keeps no one
// else waiting, and secrets stand in no text, answer, log or error.
//
// Not its job: what a condition is, and what helps against it (internal/health); how a webhook is signed
// (gather/fetch/httpfetch).
//
// Concurrency: all types are safe for concurrent use once made.
package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

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
	// lookEvery is the pause between two looks at what there is to tell.
	lookEvery = 3 * time.Second
	// noRules is the same while there are no rules.
	noRules = 5 * time.Second
	// forgetEvery is the pause between two deletions of old messages.
	forgetEvery = time.Hour
)

// Store keeps rules and messages; that of workqueue/alert is one.
type Store interface {
	Active(ctx context.Context) ([]alert.Rule, error)
	Completions(ctx context.Context, since time.Time) ([]alert.Completion, error)
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

// TaskConfig is what a LeaderTask looks at, and tells by.
type TaskConfig struct {
	Store     Store
	Receivers *Receivers
	// Health returns what a person must see to; nil, nil: it is not known yet.
	Health func(ctx context.Context) (*health.Report, error)
	// Wake has the leader do a leader task now; nil: it does it when its time comes.
	Wake func(task string)
	Log  *zap.Logger // nil: none

	// FirstRetry is the pause after a first attempt that failed; 0: 5 s.
	FirstRetry time.Duration
}

// LeaderTask looks what there is to tell, and tells it, while its node leads.
type LeaderTask struct {
	cfg    TaskConfig
	log    *zap.Logger
	lost   map[string]int // versions of rules that cannot be read, told of once
	forgot time.Time      // when old messages were deleted last
}

// New returns the leader tasks of a node.
func New(cfg TaskConfig) (*LeaderTask, error) {
	if cfg.Store == nil || cfg.Receivers == nil || cfg.Health == nil {
		return nil, errors.New("alerts: a store, receivers and the health are needed")
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Wake == nil {
		cfg.Wake = func(string) {}
	}
	return &LeaderTask{cfg: cfg, log: cfg.Log, lost: map[string]int{}}, nil
}

// LeaderTasks returns them as the node takes them: what looks does not wait for what sends.
func (d *LeaderTask) LeaderTasks() []orchestrator.LeaderTask {
	return []orchestrator.LeaderTask{{Name: LookTask, Run: d.Look}, {Name: SendTask, Run: d.Send}}
}

// Look compares what there is to tell with what was told, rule by rule. What it cannot do for one rule keeps no other
// waiting.
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

// forget deletes old messages, of rules that tell nothing any more, too.
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

// readSpec reads a rule as the store keeps it.
func readSpec(name string, text json.RawMessage) (*Spec, error) {
	s := &Spec{}
	err := json.Unmarshal(text, s)
	switch {
	case err != nil:
	case s.To.channel == nil:
		err = errors.New("it says no one to tell")
	case len(s.Runs) == 0 && s.Health == "": // what it told would be over, and no one would hear of more
		err = errors.New("it says nothing to tell")
	}
	if err != nil {
		return nil, fmt.Errorf("alert %s cannot be read by this version of tranche; apply it again: %w", name, err)
	}
	return s, nil
}

// gather reads what there may be to tell. There are no facts while PostgreSQL tells nothing.
func (d *LeaderTask) gather(ctx context.Context, rules []alert.Rule, specs []*Spec) (f *facts, err error) {
	f = &facts{}
	if f.began, err = d.cfg.Store.Now(ctx); err != nil {
		return nil, err
	}
	if f.report, err = d.cfg.Health(ctx); err != nil || f.report == nil || f.report.Blind {
		return nil, err
	}
	if f.labels, err = d.cfg.Store.Labels(ctx, runsOf(f.report)); err != nil {
		return nil, err
	}
	want := wanted(rules, specs)
	if len(want) == 0 {
		return f, nil
	}
	return f, d.gatherRuns(ctx, f, want)
}

// runsOf are the runs that conditions are about.
func runsOf(report *health.Report) (runs []workqueue.RunID) {
	for _, c := range slices.Concat(report.Conditions, report.Muted) {
		if id, err := uuid.Parse(c.Subject); err == nil {
			runs = append(runs, workqueue.RunID(id))
		}
	}
	return runs
}

// wanted is what rules tell of runs, and from when on what happens is told by any.
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
		if f.completed, err = d.cfg.Store.Completions(ctx, from); err != nil {
			return err
		}
		if n := len(f.completed); n == alert.MaxRuns { // there are more: the next look begins where this one ends
			f.began = f.completed[n-1].At
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
