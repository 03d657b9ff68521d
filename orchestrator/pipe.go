package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

// pipeState is what the node knows of the streams.
type pipeState struct {
	mu      sync.Mutex
	epoch   int64
	lastSeq uint64        // highest sequence seen in the work stream within the epoch
	changed chan struct{} // closed when the epoch grows: readers bind again
}

func (p *pipeState) now() (epoch int64, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch, p.changed
}

// advance takes over an epoch and reports whether it is a later one.
func (p *pipeState) advance(epoch int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch <= p.epoch {
		return false
	}
	p.epoch, p.lastSeq = epoch, 0
	close(p.changed)
	p.changed = make(chan struct{})
	return true
}

// rewound notes the stream's last sequence and reports whether it is lower than one seen before in the epoch.
func (p *pipeState) rewound(seq uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq < p.lastSeq {
		return true
	}
	p.lastSeq = seq
	return false
}

// endpointSet is the endpoints whose consumers are known to exist in the present epoch.
type endpointSet struct {
	mu    sync.Mutex
	epoch int64
	known map[string]bool
}

// ensureEndpoint sees to it that the endpoint's durable consumer exists, and returns the epoch in which it does.
func (n *Node) ensureEndpoint(ctx context.Context, endpoint string) (int64, error) {
	epoch, _ := n.pipe.now()
	n.endpoints.mu.Lock()
	defer n.endpoints.mu.Unlock()
	if n.endpoints.epoch != epoch {
		n.endpoints.epoch, n.endpoints.known = epoch, map[string]bool{}
	}
	if n.endpoints.known[endpoint] {
		return epoch, nil
	}
	timed, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := endpoints.EnsureConsumer(timed, n.js, endpoint); err != nil {
		return epoch, err
	}
	n.endpoints.known[endpoint] = true
	return epoch, nil
}

// Look makes the node look at the streams now.
func (n *Node) Look() { signal(n.looks) }

// watchPipe looks at the streams again and again, and at once when told to, until ctx ends.
func (n *Node) watchPipe(ctx context.Context) {
	tick := time.NewTicker(n.cfg.PipeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.looks:
		}
		timed, cancel := context.WithTimeout(ctx, lookTimeout)
		err := n.lookAtPipe(timed)
		cancel()
		if err != nil && ctx.Err() == nil {
			n.log.Warn("look at the streams", zap.Error(err))
		}
	}
}

const lookTimeout = 5 * time.Second

// lookAtPipe creates streams that are missing and tells PostgreSQL since when they exist. When they are not the ones
// known, or the work stream has lost messages at its end, a new epoch begins: readers bind again, and the leader issues
// again what was sent before.
func (n *Node) lookAtPipe(ctx context.Context) error {
	states, err := endpoints.EnsureStreams(ctx, n.js, n.cfg.Streams)
	var conflict *endpoints.StreamConflictError
	if errors.As(err, &conflict) {
		return n.replaceStream(ctx, conflict)
	}
	if err != nil {
		return err
	}
	pipe, advanced, err := n.store.ObservePipe(ctx, states.WorkCreated, states.ReplyCreated)
	if err != nil {
		return err
	}
	if advanced {
		n.log.Info("new streams", zap.Int64("epoch", pipe.Epoch))
	}
	n.enter(pipe)
	return n.lookForRewind(ctx, pipe)
}

func (n *Node) enter(pipe workqueue.Pipe) {
	if n.pipe.advance(pipe.Epoch) {
		signal(n.sweeps)
		n.Wake()
	}
}

// lookForRewind notices a server that came back without the last messages it had acknowledged.
func (n *Node) lookForRewind(ctx context.Context, pipe workqueue.Pipe) error {
	stream, err := n.js.Stream(ctx, endpoints.StreamWork)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", endpoints.StreamWork, err)
	}
	if !n.pipe.rewound(stream.CachedInfo().State.LastSeq) {
		return nil
	}
	n.log.Warn("the work stream lost acknowledged messages; issuing again what was sent", zap.Int64("epoch", pipe.Epoch))
	if err := n.store.AdvancePipe(ctx, pipe.Epoch); err != nil {
		return err
	}
	n.Look()
	return nil
}

// replaceStream deletes a stream of ours that somebody made with settings under which it cannot serve, so that the next
// look makes it anew. Nothing is lost: PostgreSQL knows what was in it. The event stream is left alone.
func (n *Node) replaceStream(ctx context.Context, conflict *endpoints.StreamConflictError) error {
	if conflict.Stream == endpoints.StreamEvent {
		return conflict
	}
	n.log.Warn("replacing a stream", zap.Error(conflict))
	if err := n.js.DeleteStream(ctx, conflict.Stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("replace stream %s: %w", conflict.Stream, err)
	}
	n.Look()
	return nil
}
