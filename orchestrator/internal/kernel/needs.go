package kernel

import (
	"context"
	"time"

	"github.com/tranchehq/tranche/workqueue/settle"
)

// Seer sees to what a commit brought beside outcomes, of what came at a time.
type Seer interface {
	Seen(out settle.Recorded, came time.Time)
}

// Announcer has the events of completed runs published. What completed them came at a time.
type Announcer interface {
	Announce(completed []settle.Completion, came time.Time)
}

// Epochs are those of the streams.
type Epochs interface {
	// Now returns the present one, and what is closed when a later one begins.
	Now() (epoch int64, changed <-chan struct{})
}

// Ensurer sees to it that endpoints have consumers.
type Ensurer interface {
	// Ensure makes that of an endpoint, if need be, and returns the epoch of the streams in which it is there.
	Ensure(ctx context.Context, endpoint string) (epoch int64, err error)
}
