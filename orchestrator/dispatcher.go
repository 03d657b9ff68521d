package orchestrator

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// dispatchConfig sets a dispatcher up. Nothing in it has a default.
type dispatchConfig struct {
	Poll        time.Duration // between two looks for work when nothing wakes the node, at the least
	ClaimSlices int           // slices of one claim
	Publishers  int           // requests built at once
	Locals      []string      // names of the node's functions for steps of kind local; not nil
	Tracer      Tracer        // nil: none
	Meter       dispatchMeter
}

// dispatchMeter measures what goes out.
type dispatchMeter interface {
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

	// start begins to record what comes of it. end ends it, when all that is under way has.
	start(ctx context.Context) (end func())
	// tend gives back what has waited too long, and ends what was taken back.
	tend(ctx context.Context)
	take(ctx context.Context, a assignment)
}

// ownRoom is the room for it.
type ownRoom interface {
	// room is how many slices of a pace may be claimed now, and full adds the paces without room to a list.
	room(kind workqueue.Kind, key string) int
	full(keys []string) []string
	// narrow has a claim bring no more than there is room for.
	narrow(req *dispatch.ClaimRequest, step *dispatch.Runnable)
}

// streamWatch is what is known of the streams.
type streamWatch interface {
	Epochs

	// Suspect has a stream tried that did not acknowledge a message.
	Suspect(stream string)
}

// follower sees to what commits brought.
type follower interface {
	Seer

	// NextDue returns how long until the first slice comes due that this node has scheduled; 0: there is none.
	NextDue(now time.Time) time.Duration
}

// dispatcher brings work from PostgreSQL into the stream, or to what the node does itself.
type dispatcher struct {
	node      *kernel
	cfg       dispatchConfig
	own       ownWork
	endpoints Ensurer
	streams   streamWatch
	after     follower
	reach     reach
	pending   *semaphore.Weighted // bytes of requests that JetStream has not acknowledged
}

func newDispatcher(k *kernel, own ownWork, endpoints Ensurer, streams streamWatch, after follower,
	cfg dispatchConfig,
) *dispatcher {
	return &dispatcher{node: k, cfg: cfg, own: own, endpoints: endpoints, streams: streams, after: after,
		pending: semaphore.NewWeighted(maxPendingBytes)}
}
