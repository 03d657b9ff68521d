package schedule

import (
	"cmp"
	"context"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Take is the part of Run that makes occurrences of due times.
func (d *LeaderTask) Take(ctx context.Context, lease workqueue.Lease) (taken bool, err error) {
	return d.take(ctx, lease)
}

// Hurry has less patience than with the bounds of items that come from a URL. 0 leaves one as it is.
func (w *Web) Hurry(header, silence, most time.Duration) *Web {
	return &Web{w.client, cmp.Or(header, w.header), cmp.Or(silence, w.silence), cmp.Or(most, w.most)}
}
