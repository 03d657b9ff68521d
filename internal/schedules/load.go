package schedules

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// load starts the run of a fire, and notes why when it cannot.
func (d *Duty) load(ctx context.Context, claim schedulestore.FireClaim, spec *schedule.Spec) {
	log := d.log.With(zap.String("schedule", claim.Schedule), zap.Time("due", claim.Due),
		zap.Int("attempt", claim.Attempt))
	defer d.runs.WakeDuty(DutyName) // a run may wait for this one, or for free hands
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
	if _, err := schedulestore.New(d.store).EndFire(ctx, claim, end); err != nil && ctx.Err() == nil {
		log.Warn("note that a run could not be started; it is tried again", zap.Error(err))
	}
}

func (d *Duty) drop(claim schedulestore.FireClaim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loading[claim.FireKey].lease == claim.Lease {
		delete(d.loading, claim.FireKey)
	}
}

// startSafely makes an error of a panic: it must not end the node, and with it the leader after it, and the next.
func (d *Duty) startSafely(ctx context.Context, job Job) (started Started, err error) {
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("the start of a run panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return d.start.StartFire(ctx, job)
}

// afterFailure decides whether a start is tried again.
func (d *Duty) afterFailure(claim *schedulestore.FireClaim, spec *schedule.Spec, err error) schedulestore.FireEnd {
	if state, ok := errors.AsType[*workqueue.StateError](err); ok && state.State == "loading" {
		return schedulestore.FireEnd{State: schedulestore.FireWaiting, Again: loadingPause,
			Reason: "what a leader before had loaded of the run is being cleared away"}
	}
	reason := fmt.Sprintf(attemptBegins+"%d of %d: %v", claim.Attempt, spec.StartAttempts, err)
	_, empty := errors.AsType[*NoItemsError](err)
	switch {
	case empty:
		return schedulestore.FireEnd{State: schedulestore.FireSkipped, Reason: err.Error()}
	case d.start.Permanent(err):
		return schedulestore.FireEnd{State: schedulestore.FireFailed, Reason: err.Error()}
	case claim.Attempt >= spec.StartAttempts:
		return schedulestore.FireEnd{State: schedulestore.FireFailed, Reason: reason}
	}
	return schedulestore.FireEnd{State: schedulestore.FireWaiting,
		Again:  backoff.Nth(startBackoff, maxStartBackoff, claim.Attempt),
		Reason: reason}
}
