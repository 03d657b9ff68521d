package schedules

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// late looks after runs that have not ended at the end of their window.
func (d *Duty) late(ctx context.Context, lease workqueue.Lease) (did bool, err error) {
	fires, err := schedulestore.New(d.store).LateFires(ctx, lease, page)
	if err != nil {
		return false, err
	}
	for i := range fires {
		ok, problem := d.lateOne(ctx, lease, &fires[i])
		if errors.Is(problem, workqueue.ErrNotLeader) {
			return did, problem
		}
		did = did || ok
		err = errors.Join(err, problem)
	}
	return did, err
}

// lateOne acts before it notes: a leader that dies in between leaves the rest to the next one, who finds the run paused
// or cancelled already.
func (d *Duty) lateOne(ctx context.Context, lease workqueue.Lease, f *schedulestore.LateFire) (did bool, err error) {
	policy := schedule.LateReport // when the schedule cannot be read any more
	if spec, err := read(f.Schedule, f.Spec); err == nil {
		policy = spec.OnLate
	}
	c := control.Control{Run: f.Run, Actor: actor(f.Schedule),
		Reason: "it has not ended by " + f.DoneBy.UTC().Format(time.RFC3339) + ", the end of its window"}
	note := "reported"
	switch policy {
	case schedule.LatePause:
		note = "paused"
		_, err = d.runs.Pause(ctx, c)
	case schedule.LateCancel:
		note = "cancelled"
		_, err = d.runs.Cancel(ctx, c)
	}
	switch {
	case err != nil && over(err):
		note = "reported; it has ended late, or is held already"
	case err != nil:
		return false, err
	}
	d.log.Warn("a run of a schedule is late", zap.String("schedule", f.Schedule), zap.Stringer("run", f.Run),
		zap.Time("done_by", f.DoneBy), zap.String("did", note))
	return schedulestore.New(d.store).NoteLate(ctx, lease, f.FireKey, note)
}
