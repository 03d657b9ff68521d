// Package streams creates a node's JetStream streams, keeps their settings, detects lost messages and broken streams,
// and knows their epoch. Every node checks the streams; only the leader changes them: see [Keeper.Tending] and
// [Keeper.Trying]. Safe for concurrent use.
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

// sliceStreams are the streams that carry slices, which are reissued if lost.
func sliceStreams() [4]string {
	return [...]string{wire.StreamWork, wire.StreamReply, wire.StreamStage, wire.StreamFlow}
}

type sequences [4]uint64

type streamsState struct {
	mu      sync.Mutex
	epoch   int64
	lastSeq sequences     // highest sequences seen within the epoch
	changed chan struct{} // closed when the epoch advances: readers bind again

	wellSince  time.Time // since when all checks have succeeded over one connection; zero: the last one failed
	reconnects uint64    // of the connection, at the last check
}

// looked notes the result of a check, and the connection's number of reconnects then.
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

// wellFor returns for how long JetStream has been available to this node.
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

func (p *streamsState) sequences() sequences {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastSeq
}

// advance enters a later epoch. lastSent is the highest known sequence of its requests in the work stream.
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

// rewound saves the streams' last sequences, and reports whether one decreased within the epoch.
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

// Config configures a keeper. No field has a default.
type Config struct {
	Interval  time.Duration // between checks of the streams
	Reconcile time.Duration // between checks of their settings
	Streams   stream.Config // initial settings, unless the database has some
	// Entered is called when a later epoch begins. Try makes the leader probe the streams now.
	Entered, Try func()
	// Stranger is called when the streams belong to another installation: the node must not serve them.
	Stranger func(error)
}

// Keeper creates the streams, keeps their settings, and knows their epoch.
type Keeper struct {
	node      *core.Core
	cfg       Config
	state     streamsState
	single    single    // name of the server's cluster, if JetStream is not clustered
	differing sync.Once // the node's own settings were compared with the saved ones
	suspects  suspects
	stalled   stalling
	limit     backoff.Timeout // of a check
}

// NewKeeper returns a keeper of the streams.
func NewKeeper(n *core.Core, cfg Config) *Keeper {
	k := &Keeper{node: n, cfg: cfg, limit: core.Querying()}
	k.state.changed = make(chan struct{})
	return k
}

// Now returns the epoch, and a channel that is closed when a later one begins.
func (k *Keeper) Now() (epoch int64, changed <-chan struct{}) { return k.state.now() }

// WellFor returns for how long JetStream has been available to this node.
func (k *Keeper) WellFor() time.Duration { return k.state.wellFor(k.node.NC.Stats().Reconnects) }

// Stalled returns nil while the streams answer.
func (k *Keeper) Stalled() *StalledStreams { return k.stalled.pulse() }

// lookPause follows a failed check, regardless of requests for another.
const lookPause = 500 * time.Millisecond

// Watch checks the streams at the interval, and when requested, until ctx ends.
func (k *Keeper) Watch(ctx context.Context) {
	tick := time.NewTicker(k.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Reset(k.node.Slower(k.cfg.Interval))
		case <-k.node.Looks:
		}
		if !k.node.NC.IsConnected() {
			continue // the disconnect has been logged
		}
		err := k.LookAtEpoch(ctx)
		k.state.looked(err == nil, k.node.NC.Stats().Reconnects)
		if _, strangers := errors.AsType[*stream.StrangerError](err); strangers {
			k.cfg.Stranger(err)
			return
		}
		if err != nil && ctx.Err() == nil {
			k.node.Log.Warn("check the streams", zap.Error(err))
			_ = backoff.Sleep(ctx, lookPause) // everything that waits for JetStream requests the next check
		}
	}
}

// LookAtEpoch creates missing streams. A new epoch begins when they were recreated or lost messages at their end:
// readers bind again, and the leader reissues what was sent before.
func (k *Keeper) LookAtEpoch(ctx context.Context) error {
	ctx, end := k.limit.Context(ctx)
	defer end()
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

// enter takes over the epoch saved in PostgreSQL, if it is later.
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

// lookForRewind detects a server that restarted without its last acknowledged messages.
func (k *Keeper) lookForRewind(ctx context.Context, current session.Epoch) error {
	var seqs sequences
	for i, name := range sliceStreams() {
		stream, err := k.node.JS.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("check stream %s: %w", name, err)
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

// replaceStream deletes our unusable stream; the next check recreates it. PostgreSQL knows what it held. The
// event and dead-letter streams stay: their messages are stored nowhere else.
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
