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
	busy map[string]store.FireKey
	// queued is the number of fires queued in this round, which the list does not count.
	queued map[string]int
	// crowded are the fires that wait for capacity to load items, in order.
	crowded []*store.WaitingFire
	notes   []store.FireNote
}

func (d *LeaderTask) begin(ctx context.Context, lease workqueue.Lease) (began bool, err error) {
	r := round{LeaderTask: d, lease: lease, busy: d.atWork(lease), queued: map[string]int{}}
	// The map is older than the list: a start that ends in between is a run in progress in the list.
	fires, err := d.store.WaitingFires(ctx, maxWaiting)
	if err != nil {
		return false, err
	}
	for i := range fires {
		if f := &fires[i]; f.State == store.FireStarting && r.busy[f.Schedule] == (store.FireKey{}) {
			r.busy[f.Schedule] = f.FireKey // of a lost leader: it precedes the rest
		}
	}
	for i := range fires {
		did, problem := r.look(ctx, &fires[i])
		if errors.Is(problem, workqueue.ErrNotLeader) || ctx.Err() != nil {
			return began, problem
		}
		began = began || did
		err = errors.Join(err, problem)
	}
	return began, errors.Join(err, r.saveReasons(ctx, fires))
}

func (d *LeaderTask) atWork(lease workqueue.Lease) map[string]store.FireKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	busy := map[string]store.FireKey{}
	for key, load := range d.loading {
		if load.lease == lease {
			busy[key.Schedule] = key
		}
	}
	return busy
}

// look decides about one fire, and reports whether it acted.
func (r *round) look(ctx context.Context, f *store.WaitingFire) (did bool, err error) {
	if r.mine(f.FireKey) {
		return false, nil
	}
	spec, err := read(f.Schedule, f.Spec)
	if err != nil {
		return false, err
	}
	if f.State != store.FireStarting {
		end, err := r.decide(ctx, f, spec)
		switch {
		case err != nil:
			return false, err
		case end != nil:
			return r.store.EndFire(ctx, store.FireClaim{FireKey: f.FireKey, Lease: r.lease}, *end)
		case r.waits(f):
			r.behindAStart(f)
			return false, nil
		}
	}
	return r.set(ctx, f, spec)
}

// mine reports whether this leader task is starting the run under this lease.
func (r *round) mine(key store.FireKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	load, mine := r.loading[key]
	return mine && load.lease == r.lease
}

func (r *round) waits(f *store.WaitingFire) bool {
	other, busy := r.busy[f.Schedule]
	return busy && other != f.FireKey
}

// decide returns the outcome of a fire without a start. Nil: it must be started, or still waits.
func (r *round) decide(
	ctx context.Context, f *store.WaitingFire, spec *Spec,
) (*store.FireEnd, error) {
	if end := outOfTime(f, spec); end != nil {
		return end, nil
	}
	return r.overlap(ctx, f, spec)
}

// outOfTime returns the outcome of a fire that may not start now. Nil: it may.
func outOfTime(f *store.WaitingFire, spec *Spec) *store.FireEnd {
	if f.StartBy != nil && f.Now.After(*f.StartBy) {
		return &store.FireEnd{State: store.FireMissed,
			Reason: "it could not be started before its start_deadline was over" + because(f.Reason)}
	}
	if f.Kind == store.FireDue {
		if at := spec.StartAt(f.StartAt, f.Now); at.After(f.Now) {
			end := &store.FireEnd{State: store.FireWaiting, Reason: "its window is shut; it waits for the next",
				StartAt: &at}
			if by, limited := spec.DoneBy(at); limited {
				end.DoneBy = &by
			}
			return end
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

func (r *round) overlap(ctx context.Context, f *store.WaitingFire, spec *Spec) (
	*store.FireEnd, error,
) {
	if len(f.UnderWay) == 0 && !r.waits(f) {
		return nil, nil
	}
	switch spec.Overlap {
	case OverlapQueue:
		return r.queue(f), nil
	case OverlapCancelOld:
		return nil, r.cancelOld(ctx, f)
	default:
		return &store.FireEnd{State: store.FireSkipped, Reason: r.others(f) + " was in progress"}, nil
	}
}

// queue queues a fire, and with it the later ones of its schedule. Nil: it is queued already.
func (r *round) queue(f *store.WaitingFire) *store.FireEnd {
	others := r.others(f)
	if _, busy := r.busy[f.Schedule]; !busy {
		r.busy[f.Schedule] = store.FireKey{Schedule: f.Schedule}
	}
	reason := "it waits in the queue; " + others + " was in progress"
	switch {
	case f.State == store.FireQueued:
		if strings.HasPrefix(f.Reason, turnBegins) { // it was about to start
			r.note(f, reason)
		}
		return nil
	case f.Queued+r.queued[f.Schedule] >= maxQueued:
		return &store.FireEnd{State: store.FireSkipped,
			Reason: fmt.Sprintf("%d due times are in the queue already; %s was in progress", maxQueued, others)}
	}
	r.queued[f.Schedule]++
	return &store.FireEnd{State: store.FireQueued, Reason: reason}
}

func (r *round) others(f *store.WaitingFire) string {
	if n := len(f.UnderWay); n > 0 {
		if n == 1 {
			return "run " + f.UnderWay[0].String()
		}
		return fmt.Sprintf("run %s, of %d runs of the schedule,", f.UnderWay[0], n)
	}
	if due := r.busy[f.Schedule].Due; !due.IsZero() {
		return "the run of " + due.UTC().Format(time.RFC3339) + ", which is being started,"
	}
	return "an earlier run"
}

// cancelOld cancels the runs in progress. A run being started is cancelled once it has its items.
func (r *round) cancelOld(ctx context.Context, f *store.WaitingFire) error {
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

// over reports whether an error means that a run has ended or was deleted.
func over(err error) bool {
	_, state := errors.AsType[*workqueue.StateError](err)
	return state || errors.Is(err, workqueue.ErrNotFound)
}

func actor(name string) string { return "schedule " + name }

func (r *round) set(ctx context.Context, f *store.WaitingFire, spec *Spec) (did bool, err error) {
	// Capacity freed during a round is left to the next one, so that no fire overtakes those that found none.
	if len(r.crowded) > 0 || !r.handsFree(f.Now) {
		r.crowded = append(r.crowded, f)
		return false, nil
	}
	claim, ok, err := r.store.BeginFire(ctx, r.lease, f.FireKey)
	if err != nil || !ok {
		return false, err
	}
	if f.State == store.FireStarting { // of a lost leader: there may have been none for long
		if end := outOfTime(f, spec); end != nil {
			return r.store.EndFire(ctx, claim, *end)
		}
		if claim.Attempt > spec.StartAttempts+maxTakeovers {
			return r.store.EndFire(ctx, claim, store.FireEnd{State: store.FireFailed,
				Reason: fmt.Sprintf(
					"the nodes that began to start it have gone in the midst of it, %d times so far", claim.Attempt-1)})
		}
	}
	r.busy[f.Schedule] = f.FireKey
	r.mu.Lock()
	r.loading[f.FireKey] = loading{r.lease, f.Now}
	r.mu.Unlock()
	r.loads.Go(func() { r.load(ctx, claim, spec) })
	return true, nil
}

func (d *LeaderTask) load(ctx context.Context, claim store.FireClaim, spec *Spec) {
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
		log.Info("gave up the start of a run; the leader after this one takes it up")
		return
	}
	end := d.afterFailure(&claim, spec, err)
	log.Warn("the run of a schedule could not be started", zap.String("then", string(end.State)),
		zap.Duration("again", end.Again), zap.Error(err))
	if _, err := d.store.EndFire(ctx, claim, end); err != nil && ctx.Err() == nil {
		log.Warn("note that a run could not be started; it is retried", zap.Error(err))
	}
}

func (d *LeaderTask) drop(claim store.FireClaim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loading[claim.FireKey].lease == claim.Lease {
		delete(d.loading, claim.FireKey)
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
	return d.start.StartFire(ctx, job)
}

func (d *LeaderTask) afterFailure(claim *store.FireClaim, spec *Spec, err error) store.FireEnd {
	if state, ok := errors.AsType[*workqueue.StateError](err); ok && state.State == "loading" {
		return store.FireEnd{State: store.FireWaiting, Again: loadingPause,
			Reason: "what a leader before had loaded of the run is being cleared away"}
	}
	reason := fmt.Sprintf(attemptBegins+"%d of %d: %v", claim.Attempt, spec.StartAttempts, err)
	_, empty := errors.AsType[*NoItemsError](err)
	switch {
	case empty:
		return store.FireEnd{State: store.FireSkipped, Reason: err.Error()}
	case d.start.Permanent(err):
		return store.FireEnd{State: store.FireFailed, Reason: err.Error()}
	case claim.Attempt >= spec.StartAttempts:
		return store.FireEnd{State: store.FireFailed, Reason: reason}
	}
	return store.FireEnd{State: store.FireWaiting,
		Again:  backoff.Nth(startBackoff, maxStartBackoff, claim.Attempt),
		Reason: reason}
}
