package schedule

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	store "github.com/tranchehq/tranche/workqueue/schedule"
)

// maxTakeovers limits takeovers of a start whose node was lost, beyond its attempts: the start may be the cause.
const maxTakeovers = 20

type round struct {
	*LeaderTask
	lease workqueue.Lease
	// busy are schedules with a run being started. The store counts a run as in progress once it has its items.
	busy map[string]store.OccurrenceKey
	// queued is the number of occurrences queued in this round, which the list does not count.
	queued map[string]int
	// crowded are the occurrences that wait for capacity to load items, in order.
	crowded []*store.WaitingOccurrence
	notes   []store.OccurrenceNote
}

func (d *LeaderTask) begin(ctx context.Context, lease workqueue.Lease) (began bool, err error) {
	r := round{LeaderTask: d, lease: lease, busy: d.atWork(lease), queued: map[string]int{}}
	// The map is older than the list: a start that ends in between is a run in progress in the list.
	occurrences, err := d.store.WaitingOccurrences(ctx, maxWaiting)
	if err != nil {
		return false, err
	}
	for i := range occurrences {
		if f := &occurrences[i]; f.State == store.OccurrenceStarting && r.busy[f.Schedule] == (store.OccurrenceKey{}) {
			r.busy[f.Schedule] = f.OccurrenceKey // of a lost leader: it precedes the rest
		}
	}
	for i := range occurrences {
		did, problem := r.look(ctx, &occurrences[i])
		if errors.Is(problem, workqueue.ErrNotLeader) || ctx.Err() != nil {
			return began, problem
		}
		began = began || did
		err = errors.Join(err, problem)
	}
	return began, errors.Join(err, r.saveReasons(ctx, occurrences))
}

func (d *LeaderTask) atWork(lease workqueue.Lease) map[string]store.OccurrenceKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	busy := map[string]store.OccurrenceKey{}
	for key, load := range d.loading {
		if load.lease == lease {
			busy[key.Schedule] = key
		}
	}
	return busy
}

// look decides about one occurrence, and reports whether it acted.
func (r *round) look(ctx context.Context, f *store.WaitingOccurrence) (did bool, err error) {
	if r.mine(f.OccurrenceKey) {
		return false, nil
	}
	spec, err := read(f.Schedule, f.Spec)
	if err != nil {
		return false, err
	}
	if f.State != store.OccurrenceStarting {
		end, err := r.decide(ctx, f, spec)
		switch {
		case err != nil:
			return false, err
		case end != nil:
			return r.store.EndOccurrence(ctx, store.OccurrenceClaim{OccurrenceKey: f.OccurrenceKey, Lease: r.lease}, *end)
		case r.waits(f):
			if f.State == store.OccurrenceWaiting { // a queued one already reports it
				r.note(f, fmt.Sprintf("the run of %s is being started; it is cancelled for this one when it has its items",
					r.busy[f.Schedule].Due.UTC().Format(time.RFC3339)))
			}
			return false, nil
		}
	}
	return r.set(ctx, f, spec)
}

// mine reports whether this leader task is starting the run under this lease.
func (r *round) mine(key store.OccurrenceKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	load, mine := r.loading[key]
	return mine && load.lease == r.lease
}

func (r *round) waits(f *store.WaitingOccurrence) bool {
	other, busy := r.busy[f.Schedule]
	return busy && other != f.OccurrenceKey
}

// decide returns the outcome of an occurrence without a start. Nil: it must be started, or still waits.
func (r *round) decide(
	ctx context.Context, f *store.WaitingOccurrence, spec *Spec,
) (*store.OccurrenceEnd, error) {
	if end := outOfTime(f, spec); end != nil {
		return end, nil
	}
	return r.overlap(ctx, f, spec)
}

// outOfTime returns the outcome of an occurrence that may not start now. Nil: it may.
func outOfTime(f *store.WaitingOccurrence, spec *Spec) *store.OccurrenceEnd {
	if f.StartBy != nil && f.Now.After(*f.StartBy) {
		return &store.OccurrenceEnd{State: store.OccurrenceMissed,
			Reason: "it could not be started before its start_deadline was over" + because(f.Reason)}
	}
	if f.Kind == store.OccurrenceDue {
		if at := spec.StartAt(f.StartAt, f.Now); at.After(f.Now) {
			return &store.OccurrenceEnd{State: store.OccurrenceWaiting, StartAt: &at, DoneBy: spec.DoneBy(at),
				Reason: "its window is shut; it waits for the next"}
		}
	}
	return nil
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return "; " + reason
}

func (r *round) overlap(ctx context.Context, f *store.WaitingOccurrence, spec *Spec) (
	*store.OccurrenceEnd, error,
) {
	behind := spec.Overlap == OverlapQueue && f.State == store.OccurrenceWaiting && f.Queued+r.queued[f.Schedule] > 0
	if len(f.UnderWay) == 0 && !r.waits(f) && !behind {
		return nil, nil
	}
	switch {
	case spec.Overlap == OverlapQueue:
		return r.queue(f), nil
	case spec.Overlap == OverlapCancelOld && f.Passed:
		return &store.OccurrenceEnd{State: store.OccurrenceSkipped, Reason: "the run of a later due time has started"}, nil
	case spec.Overlap == OverlapCancelOld:
		return nil, r.cancelOld(ctx, f)
	default:
		return &store.OccurrenceEnd{State: store.OccurrenceSkipped, Reason: r.others(f) + " was in progress"}, nil
	}
}

// queue queues an occurrence, and with it the later ones of its schedule. Nil: it is queued already.
func (r *round) queue(f *store.WaitingOccurrence) *store.OccurrenceEnd {
	others := r.others(f)
	if _, busy := r.busy[f.Schedule]; !busy {
		r.busy[f.Schedule] = store.OccurrenceKey{Schedule: f.Schedule}
	}
	reason := "it waits in the queue; " + others + " was in progress"
	switch {
	case f.State == store.OccurrenceQueued:
		if strings.HasPrefix(f.Reason, turnBegins) { // it was about to start
			r.note(f, reason)
		}
		return nil
	case f.Queued+r.queued[f.Schedule] >= maxQueued:
		return &store.OccurrenceEnd{State: store.OccurrenceSkipped,
			Reason: fmt.Sprintf("%d due times are in the queue already; %s was in progress", maxQueued, others)}
	}
	r.queued[f.Schedule]++
	return &store.OccurrenceEnd{State: store.OccurrenceQueued, Reason: reason}
}

func (r *round) others(f *store.WaitingOccurrence) string {
	if n := len(f.UnderWay); n > 0 {
		if n == 1 {
			return "run " + f.UnderWay[0].String()
		}
		return fmt.Sprintf("run %s, of %d runs of the schedule,", f.UnderWay[0], n)
	}
	if due := r.busy[f.Schedule].Due; !due.IsZero() {
		return "the run of " + due.UTC().Format(time.RFC3339) + ", which is being started,"
	}
	return "an earlier occurrence"
}

// cancelOld cancels the runs in progress. A run being started is cancelled once it has its items.
func (r *round) cancelOld(ctx context.Context, f *store.WaitingOccurrence) error {
	for _, run := range f.UnderWay {
		_, err := r.runs.Cancel(ctx, control.Control{Run: run, Actor: actor(f.Schedule),
			Reason: "overlap: cancel_old; the run of " + f.Due.UTC().Format(time.RFC3339) + " takes its place"})
		if err != nil && !over(err) {
			return err
		}
		r.log.Info("cancelled a run for the next one of its schedule", zap.String("schedule", f.Schedule),
			zap.Stringer("run", run))
	}
	return nil
}

// over reports whether an error means that a run ended or was deleted.
func over(err error) bool {
	_, state := errors.AsType[*workqueue.StateError](err)
	return state || errors.Is(err, workqueue.ErrNotFound)
}

func actor(name string) string { return "schedule " + name }

func (r *round) set(ctx context.Context, f *store.WaitingOccurrence, spec *Spec) (did bool, err error) {
	// Capacity freed during a round is left to the next one, so that no occurrence overtakes those that found none.
	if len(r.crowded) > 0 || !r.handsFree(f.Now) {
		r.crowded = append(r.crowded, f)
		return false, nil
	}
	claim, ok, err := r.store.BeginOccurrence(ctx, r.lease, f.OccurrenceKey, spec.DoneBy(f.Now))
	if err != nil || !ok {
		return false, err
	}
	if f.State == store.OccurrenceStarting { // of a lost leader: there may have been none for long
		if end := outOfTime(f, spec); end != nil {
			return r.store.EndOccurrence(ctx, claim, *end)
		}
		if claim.Attempt > spec.StartAttempts+maxTakeovers {
			return r.store.EndOccurrence(ctx, claim, store.OccurrenceEnd{State: store.OccurrenceFailed,
				Reason: fmt.Sprintf(
					"the nodes that began to start it have gone in the midst of it, %d times so far", claim.Attempt-1)})
		}
	}
	r.busy[f.Schedule] = f.OccurrenceKey
	r.mu.Lock()
	r.loading[f.OccurrenceKey] = loading{r.lease, f.Now}
	r.mu.Unlock()
	r.loads.Go(func() { r.load(ctx, claim, spec) })
	return true, nil
}

func (d *LeaderTask) load(ctx context.Context, claim store.OccurrenceClaim, spec *Spec) {
	log := d.log.With(zap.String("schedule", claim.Schedule), zap.Time("due", claim.Due),
		zap.Int("attempt", claim.Attempt))
	defer d.runs.WakeLeaderTask(TaskName) // a run may wait for this one, or for capacity
	defer d.drop(claim)
	started, err := d.startSafely(ctx, Job{Claim: claim, Spec: spec})
	switch {
	case err == nil:
		log.Info("started the run of a schedule", zap.Stringer("run", started.Run), zap.Int64("items", started.Items),
			zap.Bool("existing", started.Existing))
		return
	case ctx.Err() != nil:
		log.Info("abandoned the start of a run; the next leader continues it")
		return
	}
	end := d.afterFailure(&claim, spec, err)
	log.Warn("the run of a schedule could not be started", zap.String("then", string(end.State)),
		zap.Duration("again", end.Again), zap.String("see", "tranche schedule history "+claim.Schedule))
	log.Debug("the run of a schedule could not be started", zap.Error(err)) // may quote items
	if _, err := d.store.EndOccurrence(ctx, claim, end); err != nil && ctx.Err() == nil {
		log.Warn("note that a run could not be started; it is retried", zap.Error(err))
	}
}

func (d *LeaderTask) drop(claim store.OccurrenceClaim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loading[claim.OccurrenceKey].lease == claim.Lease {
		delete(d.loading, claim.OccurrenceKey)
	}
}

// startSafely returns a panic as an error: otherwise it would end this node, and every later leader.
func (d *LeaderTask) startSafely(ctx context.Context, job Job) (started Started, err error) {
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("the start of a run panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return d.start.StartOccurrence(ctx, job)
}

func (d *LeaderTask) afterFailure(claim *store.OccurrenceClaim, spec *Spec, err error) store.OccurrenceEnd {
	again := store.OccurrenceWaiting
	if spec.Overlap == OverlapQueue {
		again = store.OccurrenceQueued // those behind it do not overtake it
	}
	if state, ok := errors.AsType[*workqueue.StateError](err); ok && state.State == "loading" {
		return store.OccurrenceEnd{State: again, Again: loadingPause, Uncounted: true,
			Reason: "what a leader before had loaded of the run is being cleared away"}
	}
	reason := fmt.Sprintf(attemptBegins+"%d of %d: %v", claim.Attempt, spec.StartAttempts, err)
	_, empty := errors.AsType[*NoItemsError](err)
	switch {
	case empty:
		return store.OccurrenceEnd{State: store.OccurrenceSkipped, Reason: err.Error()}
	case d.start.Permanent(err):
		return store.OccurrenceEnd{State: store.OccurrenceFailed, Reason: err.Error()}
	case claim.Attempt >= spec.StartAttempts:
		return store.OccurrenceEnd{State: store.OccurrenceFailed, Reason: reason}
	}
	return store.OccurrenceEnd{State: again, Again: backoff.Nth(startBackoff, maxStartBackoff, claim.Attempt),
		Reason: reason}
}
