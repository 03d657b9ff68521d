// Package streams makes a node's JetStream streams, keeps them as they are set, finds out when one has lost messages or
// takes none, and knows their epoch.
//
// Looks are each node's, changes the leader's: see [Keeper.Tending] and [Keeper.Trying]. Safe for concurrent use.
package streams

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue/session"
)

// sliceStreams are the streams that carry slices: what one of them loses is reissued.
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

// looked notes whether a look succeeded, and how often the connection had been made again by then.
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

// Config sets a keeper up. Nothing in it has a default.
type Config struct {
	Interval  time.Duration // between two looks at the streams
	Reconcile time.Duration // between two looks at how they are set
	Streams   stream.Config // what they are to be like when nothing is set yet in the database
	// Entered is told that a later epoch has begun, and Try has the leader try the streams now.
	Entered, Try func()
	// Stranger is told that the streams have become those of another installation: the node must not serve them.
	Stranger func(error)
}

// Keeper makes the streams, keeps them as they are set, and knows their epoch.
type Keeper struct {
	node      *core.Core
	cfg       Config
	state     streamsState
	single    single    // of the server
	differing sync.Once // what the program says of the streams has been compared
	suspects  suspects
	stalled   stalling
}

// NewKeeper returns what looks after the streams.
func NewKeeper(n *core.Core, cfg Config) *Keeper {
	k := &Keeper{node: n, cfg: cfg}
	k.state.changed = make(chan struct{})
	return k
}

// Now returns the epoch, and what is closed when a later one begins.
func (k *Keeper) Now() (epoch int64, changed <-chan struct{}) { return k.state.now() }

// WellFor returns for how long JetStream has been there, as far as this node knows.
func (k *Keeper) WellFor() time.Duration { return k.state.wellFor(k.node.NC.Stats().Reconnects) }

// Stalled is what there is to say of streams that do not answer; nil: they do.
func (k *Keeper) Stalled() *StalledStreams { return k.stalled.pulse() }

// lookPause comes after a look that failed, however many ask for another.
const lookPause = 500 * time.Millisecond

// Watch looks at the streams again and again, and at once when told to, until ctx ends.
func (k *Keeper) Watch(ctx context.Context) {
	tick := time.NewTicker(k.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.node.Looks:
		}
		if !k.node.NC.IsConnected() {
			continue // whose end has been told
		}
		err := k.LookAtEpoch(ctx)
		k.state.looked(err == nil, k.node.NC.Stats().Reconnects)
		if _, strangers := errors.AsType[*stream.StrangerError](err); strangers {
			k.cfg.Stranger(err)
			return
		}
		if err != nil && ctx.Err() == nil {
			k.node.Log.Warn("look at the streams", zap.Error(err))
			_ = backoff.Sleep(ctx, lookPause) // everybody who waits for JetStream asks for the next one
		}
	}
}

// LookAtEpoch creates streams that are missing and tells PostgreSQL since when they exist. When they are not the ones
// known, or one of them has lost messages at its end, a new epoch begins: readers bind again, and the leader issues
// again what was sent before.
func (k *Keeper) LookAtEpoch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, core.QueryTimeout)
	defer cancel()
	return stream.During(ctx, k.node.NC, k.lookAtStreams, "$JS.API.STREAM.>", "$JS.API.CONSUMER.INFO.>")
}

func (k *Keeper) lookAtStreams(ctx context.Context) error {
	states, err := k.createStreams(ctx)
	if conflict, ok := errors.AsType[*stream.ConflictError](err); ok {
		return k.replaceStream(ctx, conflict)
	}
	if err != nil {
		return err
	}
	current, advanced, err := session.New(k.node.Store).ObserveStreams(ctx, session.Created{Work: states.WorkCreated,
		Reply: states.ReplyCreated, Stage: states.StageCreated, Flow: states.FlowCreated})
	if err != nil {
		return err
	}
	if advanced {
		k.node.Log.Info("new streams", zap.Int64("epoch", current.Epoch))
	}
	if err := k.enter(ctx, current); err != nil {
		return err
	}
	for of, name := range map[string]string{
		wire.StreamReply: wire.RecorderConsumer, wire.StreamDead: wire.DeadLetterConsumer,
	} {
		if consumer, err := k.node.JS.Consumer(ctx, of, name); err == nil {
			if err := stream.MendConsumer(ctx, k.node.JS, consumer.CachedInfo()); err != nil {
				return err
			}
		}
	}
	return k.lookForRewind(ctx, current)
}

// enter takes over the epoch that PostgreSQL knows, when it is a later one.
func (k *Keeper) enter(ctx context.Context, current session.Epoch) error {
	if epoch, _ := k.state.now(); current.Epoch <= epoch {
		return nil
	}
	sent, err := session.New(k.node.Store).LastSent(ctx, current.Epoch)
	if err != nil {
		return err
	}
	k.state.advance(current.Epoch, uint64(sent))
	k.cfg.Entered()
	k.node.Wake()
	return nil
}

// lookForRewind notices a server that came back without the last messages it had acknowledged.
func (k *Keeper) lookForRewind(ctx context.Context, current session.Epoch) error {
	var seqs sequences
	for i, name := range sliceStreams() {
		stream, err := k.node.JS.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("look at stream %s: %w", name, err)
		}
		seqs[i] = stream.CachedInfo().State.LastSeq
	}
	if !k.state.rewound(seqs) {
		return nil
	}
	k.node.Log.Warn("a stream lost acknowledged messages; issuing again what was sent", zap.Int64("epoch", current.Epoch))
	if err := session.New(k.node.Store).AdvanceStreams(ctx, current.Epoch); err != nil {
		return err
	}
	k.node.Look()
	return nil
}

// replaceStream deletes a stream of ours that someone made with settings under which it cannot serve, so that the next
// look makes it again. Nothing is lost: PostgreSQL knows what was in it. Streams with what PostgreSQL does not know,
// the events and the dead letters, are left alone.
func (k *Keeper) replaceStream(ctx context.Context, conflict *stream.ConflictError) error {
	if Keeps(conflict.Stream) {
		return conflict
	}
	k.node.Log.Warn("replacing a stream", zap.Error(conflict))
	if err := k.node.JS.DeleteStream(ctx, conflict.Stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("replace stream %s: %w", conflict.Stream, err)
	}
	k.node.Look()
	return nil
}
