// Package sweep issues again what cannot come to an end by itself: of dead sessions, lost streams, silent services, and
// requests that are gone. All of it is done by the node that leads.
package sweep

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Config sets a Sweeper up. Nothing in it has a default.
type Config struct {
	LeaseTTL time.Duration // life of the leader's lease beyond its last prolonging
	// Queues asks JetStream for the consumers of endpoints. Those that are missing are nil in it, those of which nothing
	// is known are not in it. More than FewQueues are read together.
	Queues    func(ctx context.Context, endpoints []string) map[string]*jetstream.ConsumerInfo
	FewQueues int
}

// streamsSeen is what is known of the streams.
type streamsSeen interface {
	kernel.Epochs

	// WellFor returns for how long JetStream has been there, as far as this node knows.
	WellFor() time.Duration
}

// madeConsumers are the consumers of endpoints.
type madeConsumers interface {
	kernel.Ensurer

	// Forget has the next who asks for it look whether it is there.
	Forget(endpoint string)
}

// missed is what any node may have missed.
type missed interface {
	SweepHolds(ctx context.Context) error
	SweepWatched(ctx context.Context) error
}

// resender sends requeued dead letters that a dead node left behind.
type resender interface{ Resend() }

// ender ends open runs.
type ender interface {
	SealRun(ctx context.Context, req start.SealRequest) (start.Sealed, error)
	Cancel(ctx context.Context, c control.Control) (control.Cancelled, error)
}

// Sweeper issues again what cannot come to an end by itself. All of it is the leader's.
type Sweeper struct {
	node      *kernel.Kernel
	cfg       Config
	streams   streamsSeen
	endpoints madeConsumers
	watch     missed
	letters   resender
	runs      ender
	healed    time.Time // when lines were looked at last; sweepLines'
	unmoved   time.Time // when no service had moved at many endpoints; noteHandedOut's
}

// New returns what sweeps after others, for the leader.
func New(k *kernel.Kernel, streams streamsSeen, endpoints madeConsumers, watch missed, letters resender, runs ender,
	cfg Config,
) *Sweeper {
	return &Sweeper{node: k, cfg: cfg, streams: streams, endpoints: endpoints, watch: watch, letters: letters, runs: runs}
}
