package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue/streams"
)

// sliceStreams are the streams that carry slices: what one of them loses is issued again.
func sliceStreams() [4]string {
	return [...]string{wire.StreamWork, wire.StreamReply, wire.StreamStage, wire.StreamFlow}
}

// sequences are the last ones of sliceStreams.
type sequences [4]uint64

// streamsState is what the node knows of the streams.
type streamsState struct {
	mu      sync.Mutex
	epoch   int64
	lastSeq sequences     // highest sequences seen within the epoch
	changed chan struct{} // closed when the epoch grows: readers bind again

	wellSince  time.Time // since when each look has succeeded, over one connection; zero: the last one did not
	reconnects uint64    // of the connection, at the last look
}

// looked notes whether a look succeeded, and how often the connection had been made anew by then.
func (p *streamsState) looked(well bool, reconnects uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !well:
		p.wellSince = time.Time{}
	case p.wellSince.IsZero() || reconnects != p.reconnects:
		p.wellSince = time.Now()
	}
	p.reconnects = reconnects
}

// wellFor returns for how long JetStream has been there, as far as this node knows.
func (p *streamsState) wellFor(reconnects uint64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wellSince.IsZero() || reconnects != p.reconnects {
		return 0
	}
	return time.Since(p.wellSince)
}

func (p *streamsState) now() (epoch int64, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch, p.changed
}

// sequences returns the streams' last sequences, as of the last look at them.
func (p *streamsState) sequences() sequences {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastSeq
}

// advance takes over a later epoch, in which a request is known to have had the place lastSent in the work stream.
func (p *streamsState) advance(epoch int64, lastSent uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch <= p.epoch {
		return
	}
	p.epoch, p.lastSeq = epoch, sequences{lastSent}
	close(p.changed)
	p.changed = make(chan struct{})
}

// rewound notes the streams' last sequences and reports whether one is lower than it was before in the epoch.
func (p *streamsState) rewound(seqs sequences) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, seq := range seqs {
		if seq < p.lastSeq[i] {
			return true
		}
	}
	p.lastSeq = seqs
	return false
}

// endpointSet is the endpoints whose consumers are known to exist in the present epoch.
type endpointSet struct {
	making singleflight.Group

	mu    sync.Mutex
	epoch int64
	known map[string]bool
}

func (s *endpointSet) has(epoch int64, endpoint string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return epoch == s.epoch && s.known[endpoint]
}

func (s *endpointSet) add(epoch int64, endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch > s.epoch {
		s.epoch, s.known = epoch, map[string]bool{}
	}
	if epoch == s.epoch {
		s.known[endpoint] = true
	}
}

// ensureEndpoint sees to it that the endpoint's durable consumer exists, and returns the epoch in which it does. One
// that cannot be made keeps no other endpoint waiting.
func (n *Node) ensureEndpoint(ctx context.Context, endpoint string) (int64, error) {
	epoch, _ := n.streams.now()
	if n.endpoints.has(epoch, endpoint) {
		return epoch, nil
	}
	_, err, _ := n.endpoints.making.Do(endpoint+" "+strconv.FormatInt(epoch, 10), func() (any, error) {
		timed, cancel := context.WithTimeout(ctx, publishTimeout)
		defer cancel()
		settings, err := n.settings(timed, endpoint)
		if err != nil {
			return nil, err
		}
		if err := stream.EnsureConsumer(timed, n.js, endpoint, settings); err != nil {
			return nil, err
		}
		n.endpoints.add(epoch, endpoint)
		return nil, nil
	})
	return epoch, err
}

// forget makes the next publication to an endpoint ensure its consumer again.
func (s *endpointSet) forget(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, endpoint)
}

// Look makes the node look at the streams now.
func (n *Node) Look() { signal(n.looks) }

// watchEpoch looks at the streams again and again, and at once when told to, until ctx ends.
func (n *Node) watchEpoch(ctx context.Context) {
	tick := time.NewTicker(n.cfg.StreamsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.looks:
		}
		if !n.nc.IsConnected() {
			continue // whose end has been told
		}
		err := n.lookAtEpoch(ctx)
		n.streams.looked(err == nil, n.nc.Stats().Reconnects)
		if err != nil && ctx.Err() == nil {
			n.log.Warn("look at the streams", zap.Error(err))
		}
	}
}

// lookTimeout bounds one look. A server that restarts may leave a request unanswered; the next look asks again.
const lookTimeout = 2 * time.Second

// lookAtEpoch creates streams that are missing and tells PostgreSQL since when they exist. When they are not the ones
// known, or one of them has lost messages at its end, a new epoch begins: readers bind again, and the leader issues
// again what was sent before.
func (n *Node) lookAtEpoch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return stream.During(ctx, n.nc, n.lookAtStreams, "$JS.API.STREAM.>", "$JS.API.CONSUMER.INFO.>")
}

func (n *Node) lookAtStreams(ctx context.Context) error {
	states, err := n.createStreams(ctx)
	if conflict, ok := errors.AsType[*stream.ConflictError](err); ok {
		return n.replaceStream(ctx, conflict)
	}
	if err != nil {
		return err
	}
	current, advanced, err := streams.New(n.store).ObserveStreams(ctx, streams.Created{Work: states.WorkCreated,
		Reply: states.ReplyCreated, Stage: states.StageCreated, Flow: states.FlowCreated})
	if err != nil {
		return err
	}
	if advanced {
		n.log.Info("new streams", zap.Int64("epoch", current.Epoch))
	}
	if err := n.enter(ctx, current); err != nil {
		return err
	}
	for of, name := range map[string]string{
		wire.StreamReply: wire.RecorderConsumer, wire.StreamDead: wire.DeadLetterConsumer,
	} {
		if consumer, err := n.js.Consumer(ctx, of, name); err == nil {
			if err := stream.MendConsumer(ctx, n.js, consumer.CachedInfo()); err != nil {
				return err
			}
		}
	}
	return n.lookForRewind(ctx, current)
}

// enter takes over the epoch that PostgreSQL knows, when it is a later one.
func (n *Node) enter(ctx context.Context, current streams.Epoch) error {
	if epoch, _ := n.streams.now(); current.Epoch <= epoch {
		return nil
	}
	sent, err := streams.New(n.store).LastSent(ctx, current.Epoch)
	if err != nil {
		return err
	}
	n.streams.advance(current.Epoch, uint64(sent))
	n.wakeOwnDuty(dutySweep)
	n.Wake()
	return nil
}

// lookForRewind notices a server that came back without the last messages it had acknowledged.
func (n *Node) lookForRewind(ctx context.Context, current streams.Epoch) error {
	var seqs sequences
	for i, name := range sliceStreams() {
		stream, err := n.js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("look at stream %s: %w", name, err)
		}
		seqs[i] = stream.CachedInfo().State.LastSeq
	}
	if !n.streams.rewound(seqs) {
		return nil
	}
	n.log.Warn("a stream lost acknowledged messages; issuing again what was sent", zap.Int64("epoch", current.Epoch))
	if err := streams.New(n.store).AdvanceStreams(ctx, current.Epoch); err != nil {
		return err
	}
	n.Look()
	return nil
}

// replaceStream deletes a stream of ours that somebody made with settings under which it cannot serve, so that the next
// look makes it anew. Nothing is lost: PostgreSQL knows what was in it. Streams with what PostgreSQL does not know, the
// events and the dead letters, are left alone.
func (n *Node) replaceStream(ctx context.Context, conflict *stream.ConflictError) error {
	if Keeps(conflict.Stream) {
		return conflict
	}
	n.log.Warn("replacing a stream", zap.Error(conflict))
	if err := n.js.DeleteStream(ctx, conflict.Stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("replace stream %s: %w", conflict.Stream, err)
	}
	n.Look()
	return nil
}
