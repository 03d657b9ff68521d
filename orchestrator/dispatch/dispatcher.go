// Package dispatch claims ready items in slices and publishes their requests, or gives them to what the node does
// itself.
//
// One claimer, a few publishers, one that waits for acknowledgements: see [Dispatcher.Run].
package dispatch

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/orchestrator/span"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// Config sets a dispatcher up. Nothing in it has a default.
type Config struct {
	Poll        time.Duration // between two looks for work when nothing wakes the node, at the least
	ClaimSlices int           // slices of one claim
	Publishers  int           // requests built at once
	Locals      []string      // names of the node's functions for steps of kind local; not nil
	Tracer      span.Tracer   // nil: none
	Meter       meter
}

// meter measures what goes out.
type meter interface {
	// Claimed is told how long a transaction took that brought work.
	Claimed(took time.Duration)
	// Published is told how long a request took from its claim until the stream had it.
	Published(took time.Duration)
	// Sent is told that the stream has a request.
	Sent(endpoint string, attempt int)
}

// ownWork is what the node works on itself.
type ownWork interface {
	ownRoom

	// Start begins to record what comes of it. end ends it, when all that is under way has.
	Start(ctx context.Context) (end func())
	// Tend gives back what has waited too long, and ends what was taken back.
	Tend(ctx context.Context)
	Take(ctx context.Context, a Assignment)
}

// ownRoom is the room for it.
type ownRoom interface {
	// Room is how many slices of a pace may be claimed now, and Full adds the paces without room to a list.
	Room(kind workqueue.Kind, key string) int
	Full(keys []string) []string
	// Narrow has a claim bring no more than there is room for.
	Narrow(req *dispatch.ClaimRequest, step *dispatch.Runnable)
}

// streamWatch is what is known of the streams.
type streamWatch interface {
	kernel.Epochs

	// Suspect has a stream tried that did not acknowledge a message.
	Suspect(stream string)
}

// follower sees to what commits brought.
type follower interface {
	kernel.Seer

	// NextDue returns how long until the first slice comes due that this node has scheduled; 0: there is none.
	NextDue(now time.Time) time.Duration
}

// Dispatcher brings work from PostgreSQL into the stream, or to what the node does itself.
type Dispatcher struct {
	node      *kernel.Kernel
	cfg       Config
	own       ownWork
	endpoints kernel.Ensurer
	streams   streamWatch
	after     follower
	reach     reach
	pending   *semaphore.Weighted // bytes of requests that JetStream has not acknowledged
}

// New returns what claims work and publishes it.
func New(k *kernel.Kernel, own ownWork, endpoints kernel.Ensurer, streams streamWatch, after follower,
	cfg Config,
) *Dispatcher {
	return &Dispatcher{node: k, cfg: cfg, own: own, endpoints: endpoints, streams: streams, after: after,
		pending: semaphore.NewWeighted(maxPendingBytes)}
}
