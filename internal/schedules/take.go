package schedules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// take makes fires of due times that have come.
func (d *Duty) take(ctx context.Context, lease workqueue.Lease) (taken bool, err error) {
	due, err := schedulestore.New(d.store).DueSchedules(ctx, page)
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

func (d *Duty) takeOne(
	ctx context.Context, lease workqueue.Lease, due *schedulestore.DueSchedule,
) (taken bool, err error) {
	spec, err := read(due.Name, due.Spec)
	if err != nil {
		return false, err
	}
	passed := spec.Due(due.NextDue.Add(-time.Nanosecond), due.Now)
	t := schedulestore.Taking{
		Schedule: due.Name, Version: due.Version, Was: due.NextDue, LastDue: due.NextDue,
		Fires: firesOf(spec, &passed, due.Now),
	}
	if len(t.Fires) > 0 {
		t.LastDue = t.Fires[len(t.Fires)-1].Due
	}
	if !passed.Next.IsZero() {
		t.Next = &passed.Next
	}
	taken, err = schedulestore.New(d.store).TakeFires(ctx, lease, t)
	if taken && len(passed.Missed) > 0 {
		d.log.Warn("due times were missed", zap.String("schedule", due.Name), zap.Int("missed", len(passed.Missed)),
			zap.Time("from", passed.Missed[0]), zap.Int("started_late", len(passed.Fire)))
	}
	return taken, err
}

// firesOf returns what the due times that have passed become, the oldest first.
func firesOf(spec *schedule.Spec, passed *schedule.Passed, now time.Time) []schedulestore.NewFire {
	fires := make([]schedulestore.NewFire, 0, len(passed.Missed)+len(passed.Fire))
	for i, due := range passed.Missed {
		reason := fmt.Sprintf("no leader was there to start it; misfire is %s", spec.Misfire)
		if i == 0 && passed.More {
			reason += "; earlier due times were missed too, and are not listed"
		}
		fires = append(fires, schedulestore.NewFire{Due: due, StartAt: due, State: schedulestore.FireMissed, Reason: reason})
	}
	for _, due := range passed.Fire {
		planned := spec.Planned(due)
		fire := schedulestore.NewFire{Due: due, StartAt: spec.StartAt(planned, now), State: schedulestore.FireWaiting}
		if by, limited := spec.StartBy(planned); limited {
			fire.StartBy = &by
		}
		if by, limited := spec.DoneBy(fire.StartAt); limited {
			fire.DoneBy = &by
		}
		fires = append(fires, fire)
	}
	return fires
}
