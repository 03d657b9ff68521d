package schedules

import (
	"context"

	"github.com/tranchehq/tranche/workqueue"
)

// Take is the part of Run that makes fires of due times.
func (d *Duty) Take(ctx context.Context, lease workqueue.Lease) (taken bool, err error) {
	return d.take(ctx, lease)
}
