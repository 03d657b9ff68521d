package schedules

import (
	"context"

	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// Job is a run to be started for a fire.
type Job struct {
	Claim schedulestore.FireClaim
	Spec  *schedule.Spec
}

// Started is the run of a fire.
type Started struct {
	Run      workqueue.RunID
	Items    int64
	Existing bool // it was started before, by a leader that is gone
}

// Starter starts the runs of schedules, in the way in which people start them. The run begins in the transaction that
// notes its fire as started, and not at all once another leader has taken the fire up. After an error there is no run.
type Starter interface {
	StartFire(ctx context.Context, job Job) (Started, error)
	// Permanent reports whether an error of StartFire stays the same however often it is tried.
	Permanent(err error) bool
}
