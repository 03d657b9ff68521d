package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	store "github.com/tranchehq/tranche/workqueue/schedule"
)

// TaskName is the name of the leader task.
const TaskName = "schedules"

// Limits and pauses of the leader task.
const (
	DefaultStarts = 4 // concurrent loads of items, not counting slow ones
	slowStarts    = 4 // factor of the limit that includes slow loads

	slowLoad  = time.Minute      // duration from which a load is slow, and frees its place
	savePause = 10 * time.Second // between saves of the reasons why occurrences wait

	startBackoff    = 5 * time.Second // after the first failed attempt; then doubled
	maxStartBackoff = 5 * time.Minute
	loadingPause    = 2 * time.Second // while the partial load of a dead leader is removed

	maxPause  = 5 * time.Second // between rounds, for changes without a notification
	idlePause = time.Second     // while something waits for a condition without a known time
	goOn      = 10 * time.Millisecond

	page       = 100 // due schedules, and late runs, per round
	maxWaiting = 1000
	maxQueued  = 100 // per schedule
)

// Runs controls existing runs, as a node does.
type Runs interface {
	Pause(ctx context.Context, c control.Control) (control.Controlled, error)
	Cancel(ctx context.Context, c control.Control) (control.Cancelled, error)
	WakeLeaderTask(name string)
}

// Config configures a LeaderTask. A zero field means its default.
type Config struct {
	Log    *zap.Logger // nil: no logs
	Starts int         // concurrent loads of items, not counting slow ones
}

// LeaderTask starts the runs of schedules while its node leads.
type LeaderTask struct {
	store store.Store
	runs  Runs
	start Starter
	cfg   Config
	log   *zap.Logger

	mu      sync.Mutex
	loading map[store.OccurrenceKey]loading // by goroutines of this leader task
	saved   time.Time                       // when reasons why occurrences wait were last saved
	loads   sync.WaitGroup
}

type loading struct {
	lease workqueue.Lease
	since time.Time // the database's time
}

// New returns the leader task of a node.
func New(db *database.DB, runs Runs, start Starter, cfg Config) (*LeaderTask, error) {
	if db == nil || runs == nil || start == nil {
		return nil, errors.New("schedules: a store, runs and a starter are needed")
	}
	if cfg.Starts < 0 {
		return nil, fmt.Errorf("schedules: Config.Starts is %d; it must be positive, or 0 for %d", cfg.Starts, DefaultStarts)
	}
	cfg.Starts = cmp.Or(cfg.Starts, DefaultStarts)
	cfg.Log = cmp.Or(cfg.Log, zap.NewNop())
	return &LeaderTask{store: store.New(db), runs: runs, start: start, cfg: cfg, log: cfg.Log,
		loading: map[store.OccurrenceKey]loading{}}, nil
}

// LeaderTask returns it in the node's form.
func (d *LeaderTask) LeaderTask() orchestrator.LeaderTask {
	return orchestrator.LeaderTask{Name: TaskName, Run: d.Run}
}

// Wait waits for the loads in progress when the lease was lost. Their context is done by then.
func (d *LeaderTask) Wait() { d.loads.Wait() }

// Run takes due times, starts runs, and handles late ones. Items are loaded in other goroutines, until ctx ends.
func (d *LeaderTask) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	taken, err := d.take(ctx, lease)
	began, err2 := d.begin(ctx, lease)
	late, err3 := d.late(ctx, lease)
	err = errors.Join(err, err2, err3)
	if errors.Is(err, workqueue.ErrNotLeader) || ctx.Err() != nil {
		return 0, err
	}
	wait, ok, err4 := d.store.NextScheduleTime(ctx)
	err = errors.Join(err, err4)
	switch {
	case err != nil:
		return idlePause, err
	case taken || began || late:
		return goOn, nil
	case !ok:
		return maxPause, nil
	case wait == 0: // a queued run, or no capacity
		return idlePause, nil
	}
	return min(wait, maxPause), nil
}

func read(name string, text json.RawMessage) (*Spec, error) {
	spec := &Spec{}
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("schedule %s cannot be read by this version of tranche; apply it again: %w", name, err)
	}
	return spec, nil
}

// Job is a run to be started for an occurrence.
type Job struct {
	Claim store.OccurrenceClaim
	Spec  *Spec
}

// Started is the run of an occurrence.
type Started struct {
	Run      workqueue.RunID
	Items    int64
	Existing bool // started before, by a lost leader
}

// Starter starts runs like the API does. The run begins in the transaction that marks its occurrence as started,
// and not if another leader has taken over the occurrence. After an error there is no run.
type Starter interface {
	StartOccurrence(ctx context.Context, job Job) (Started, error)
	// Permanent reports whether an error of StartOccurrence cannot be fixed by a retry.
	Permanent(err error) bool
}

// take makes occurrences of the due times that have come.
func (d *LeaderTask) take(ctx context.Context, lease workqueue.Lease) (taken bool, err error) {
	due, err := d.store.DueSchedules(ctx, page)
	if err != nil {
		return false, err
	}
	for i := range due {
		ok, problem := d.takeOne(ctx, lease, &due[i])
		if errors.Is(problem, workqueue.ErrNotLeader) {
			return taken, problem
		}
		taken = taken || ok
		err = errors.Join(err, problem)
	}
	return taken, err
}

func (d *LeaderTask) takeOne(
	ctx context.Context, lease workqueue.Lease, due *store.DueSchedule,
) (taken bool, err error) {
	spec, err := read(due.Name, due.Spec)
	if err != nil {
		return false, err
	}
	passed := spec.Due(due.NextDue.Add(-time.Nanosecond), due.Now)
	t := store.Taking{
		Schedule: due.Name, Version: due.Version, Was: due.NextDue, LastDue: due.NextDue,
		Occurrences: occurrencesOf(spec, &passed, due.Now),
	}
	if len(t.Occurrences) > 0 {
		t.LastDue = t.Occurrences[len(t.Occurrences)-1].Due
	}
	if !passed.Next.IsZero() {
		t.Next = &passed.Next
	}
	taken, err = d.store.TakeOccurrences(ctx, lease, t)
	if err == nil && taken && len(passed.Missed) > 0 {
		d.log.Warn("due times were missed", zap.String("schedule", due.Name), zap.Int("missed", len(passed.Missed)),
			zap.Time("from", passed.Missed[0]), zap.Int("started_late", len(passed.Fire)))
	}
	return taken, err
}

func occurrencesOf(spec *Spec, passed *Passed, now time.Time) []store.NewOccurrence {
	occurrences := make([]store.NewOccurrence, 0, len(passed.Missed)+len(passed.Fire))
	for i, due := range passed.Missed {
		reason := fmt.Sprintf("no leader was there to start it; misfire is %s", spec.Misfire)
		if i == 0 && passed.More {
			reason += "; earlier due times were missed too, and are not listed"
		}
		missed := store.NewOccurrence{Due: due, StartAt: due, State: store.OccurrenceMissed, Reason: reason}
		occurrences = append(occurrences, missed)
	}
	for _, due := range passed.Fire {
		planned := spec.Planned(due)
		start := spec.StartAt(planned, now)
		occurrences = append(occurrences, store.NewOccurrence{Due: due, StartAt: start, StartBy: spec.StartBy(planned),
			DoneBy: spec.DoneBy(start), State: store.OccurrenceWaiting})
	}
	return occurrences
}

// handsFree reports whether another run's items may be loaded. Slow sources do not make the rest wait, within a
// limit: each has a connection and possibly a file.
func (d *LeaderTask) handsFree(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	quick := 0
	for _, load := range d.loading {
		if now.Sub(load.since) < slowLoad {
			quick++
		}
	}
	return quick < d.cfg.Starts && len(d.loading) < d.cfg.Starts*slowStarts
}

// Prefixes by which reasons of occurrences are recognized.
const (
	attemptBegins = "attempt "
	turnBegins    = "its turn has not come: "
	turnGoesOn    = "; before that: "
)

func (r *round) note(f *store.WaitingOccurrence, reason string) {
	if f.Reason != reason {
		r.notes = append(r.notes, store.OccurrenceNote{OccurrenceKey: f.OccurrenceKey, Was: f.Reason, Reason: reason})
	}
}

// saveReasons saves why occurrences wait, but not each time: a thousand reasons may change with each loaded run.
func (r *round) saveReasons(ctx context.Context, occurrences []store.WaitingOccurrence) error {
	if crowd := r.crowd(); crowd != "" {
		for before, f := range r.crowded {
			if f.State != store.OccurrenceStarting { // a started one reports when
				r.note(f, turn(f.Reason, crowd, before))
			}
		}
	}
	if len(r.notes) == 0 || !r.maySave(occurrences[0].Now) {
		return nil
	}
	return r.store.NoteOccurrences(ctx, r.lease, r.notes)
}

func (d *LeaderTask) maySave(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if since := now.Sub(d.saved); since >= 0 && since < savePause {
		return false
	}
	d.saved = now
	return true
}

// crowd names the runs being loaded. Empty: none.
func (d *LeaderTask) crowd() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.loading))
	for key := range d.loading {
		names = append(names, key.Schedule)
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("%d runs of schedules are being loaded (%s)", len(names), strings.Join(names, ", "))
}

// turn returns why an occurrence waits for others, and its earlier outcome.
func turn(was, crowd string, before int) string {
	reason := turnBegins + crowd
	switch before {
	case 0:
		reason += ", and it is next"
	case 1:
		reason += ", and another is before it"
	default:
		reason += fmt.Sprintf(", and %d others are before it", before)
	}
	if strings.HasPrefix(was, turnBegins) {
		_, was, _ = strings.Cut(was, turnGoesOn)
	}
	if strings.HasPrefix(was, attemptBegins) {
		reason += turnGoesOn + was
	}
	return reason
}

func (d *LeaderTask) late(ctx context.Context, lease workqueue.Lease) (did bool, err error) {
	occurrences, err := d.store.LateOccurrences(ctx, lease, page)
	if err != nil {
		return false, err
	}
	for i := range occurrences {
		ok, problem := d.lateOne(ctx, lease, &occurrences[i])
		if errors.Is(problem, workqueue.ErrNotLeader) {
			return did, problem
		}
		did = did || ok
		err = errors.Join(err, problem)
	}
	return did, err
}

// lateOne acts before it saves that: if the leader dies in between, the next one finds the run paused or cancelled.
func (d *LeaderTask) lateOne(
	ctx context.Context, lease workqueue.Lease, f *store.LateOccurrence,
) (did bool, err error) {
	is, err := d.store.Occurrences(ctx, store.OccurrenceFilter{Schedule: f.Schedule,
		Before: f.Due.Add(time.Microsecond), Limit: 1})
	if err != nil || len(is.Occurrences) == 0 || is.Occurrences[0].DoneBy == nil ||
		!is.Occurrences[0].DoneBy.Equal(f.DoneBy) {
		return false, err // meanwhile an operator gave it more time
	}
	policy := LateReport // if the schedule is unreadable
	if spec, err := read(f.Schedule, f.Spec); err == nil {
		policy = spec.OnLate
	}
	c := control.Control{Run: f.Run, Actor: actor(f.Schedule),
		Reason: "it has not ended by " + f.DoneBy.UTC().Format(time.RFC3339) + ", the end of its window"}
	note := "reported"
	switch policy {
	case LatePause:
		note = "paused"
		_, err = d.runs.Pause(ctx, c)
	case LateCancel:
		note = "cancelled"
		_, err = d.runs.Cancel(ctx, c)
	}
	switch {
	case err != nil && over(err):
		note = "reported; it ended late, or is already held"
	case err != nil:
		return false, err
	}
	d.log.Warn("a run of a schedule is late", zap.String("schedule", f.Schedule), zap.Stringer("run", f.Run),
		zap.Time("done_by", f.DoneBy), zap.String("did", note))
	return d.store.NoteLate(ctx, lease, f.OccurrenceKey, note)
}
