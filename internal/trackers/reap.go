package trackers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// reapLook is how often the leader looks for batches that were idle for too long or ended long ago.
	reapLook = 5 * time.Second
	// purgePause lets others have the disk between two transactions that delete rows.
	purgePause = 50 * time.Millisecond
)

// ReapStore ends and deletes batches; Store of workqueue/tracker is one.
type ReapStore interface {
	ReapTrackers(ctx context.Context, lease workqueue.Lease) (reaped service.Reaped, more bool, err error)
	PurgeTrackers(ctx context.Context, lease workqueue.Lease) (rows int, more bool, err error)
}

// Reaper ends batches that everybody forgot, and deletes those that ended long ago, a little at a time. Its Run is a
// duty of the leader's.
type Reaper struct {
	store ReapStore
	log   *zap.Logger
}

// NewReaper returns a Reaper. The events that it leaves are published with the leader's next sweep.
func NewReaper(store ReapStore, log *zap.Logger) (*Reaper, error) {
	if store == nil {
		return nil, errors.New("trackers: a reaper needs a store")
	}
	if log == nil {
		log = zap.NewNop()
	}
	return &Reaper{store: store, log: log}, nil
}

// Run looks at everything whose time may have come. While there are rows to delete it comes again soon: each time it
// deletes a bounded number in a transaction of its own.
func (r *Reaper) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	for more := true; more; {
		var reaped service.Reaped
		reaped, more, err = r.store.ReapTrackers(ctx, lease)
		if err != nil {
			return 0, fmt.Errorf("reap trackers: %w", err)
		}
		for _, id := range reaped.Expired {
			r.log.Warn("a tracker expired: nobody touched it for too long", zap.Stringer("batch", id))
		}
	}
	_, more, err := r.store.PurgeTrackers(ctx, lease)
	if err != nil {
		return 0, fmt.Errorf("delete rows of trackers: %w", err)
	}
	if more {
		return purgePause, nil
	}
	return reapLook, nil
}
