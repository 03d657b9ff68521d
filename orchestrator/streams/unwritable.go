package streams

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

const (
	// probeTimeout limits a probe, and the test with a scratch stream. Slow streams do not count as broken: see
	// streamReconciler.
	probeTimeout = 3 * time.Second
	// probeQuiet is how long a stream may be silent before it is probed while requests are in progress, probeIdle
	// otherwise.
	probeQuiet = 5 * time.Second
	probeIdle  = time.Minute
	probePause = time.Second
	// replicatedTimeout is how long a replicated stream may accept nothing: a server with a full disk hands it over to
	// others.
	replicatedTimeout = 30 * time.Second
	// eventsLately is how far back events are republished when their stream was replaced.
	eventsLately = 10 * time.Minute
)

// ourStreams returns all streams; the messages of the last two are not in PostgreSQL.
func ourStreams() []string {
	carry := sliceStreams()
	return append(carry[:], wire.StreamDead, wire.StreamEvent)
}

// suspects are the streams that did not acknowledge a message of this node.
type suspects struct {
	mu    sync.Mutex
	names map[string]bool
}

func (s *suspects) add(stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.names[stream] = true
}

func (s *suspects) take() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.names
	s.names = nil
	return taken
}

// Suspect makes the leader probe a stream that did not acknowledge a message.
func (k *Keeper) Suspect(stream string) {
	k.suspects.add(stream)
	k.cfg.Try()
}

// Trying is the leader task that probes silent streams, and replaces broken ones.
func (k *Keeper) Trying() func(context.Context, workqueue.Lease) (time.Duration, error) {
	c := &streamReconciler{Keeper: k}
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if !k.node.NC.IsConnected() {
			return probePause, nil
		}
		if lease != c.lease {
			*c = streamReconciler{Keeper: k, lease: lease, heard: map[string]time.Time{}, last: map[string]uint64{}}
		}
		err := c.round(ctx)
		if len(c.faults) > 0 {
			return probePause, err
		}
		return k.node.Slower(probePause), err
	}
}

// streamReconciler finds streams that accept no messages although their server answers: nats-server leaves a file
// store so after one failed write. It replaces a stream that first did not acknowledge a probe, and then not another
// one, after JetStream stored a message in a scratch stream in between. That rules out the disk, the server and a
// missing quorum; a server that is slow, stopped or unavailable fails it. It is for one goroutine.
type streamReconciler struct {
	*Keeper

	lease  workqueue.Lease
	heard  map[string]time.Time // when each last accepted a message
	last   map[string]uint64    // sequences
	faults map[string]time.Time // broken streams, and since when; nil: not read yet
}

func (c *streamReconciler) round(ctx context.Context) error {
	if c.faults == nil {
		known, err := session.New(c.node.Store).StreamFaults(ctx)
		if err != nil {
			return err
		}
		c.faults = map[string]time.Time{}
		for _, f := range known {
			c.faults[f.Stream] = time.Now() // on this node's clock
		}
	}
	due, err := c.due(ctx)
	if err != nil || len(due) == 0 {
		return err
	}
	proven := len(c.faults) > 0
	if proven {
		if err := c.room(ctx); err != nil {
			return c.noRoom(ctx, err)
		}
	}
	return c.try(ctx, due, proven)
}

// due returns the streams to probe: all of them while one is broken, otherwise suspected and silent ones.
func (c *streamReconciler) due(ctx context.Context) (due []string, err error) {
	suspected := c.suspects.take()
	if len(c.faults) > 0 {
		return ourStreams(), nil
	}
	waiting, err := session.New(c.node.Store).RequestsWait(ctx, probeQuiet)
	if err != nil {
		return nil, err
	}
	moved, carry := c.state.sequences(), sliceStreams()
	for i, name := range carry {
		if moved[i] != c.last[name] {
			c.last[name], c.heard[name] = moved[i], time.Now()
		}
	}
	for _, name := range ourStreams() {
		if c.heard[name].IsZero() {
			c.heard[name] = time.Now()
		}
		silent := time.Since(c.heard[name])
		carries := waiting && slices.Contains(carry[:], name)
		// Readers of the events see probes, so that stream is probed only on suspicion.
		if suspected[name] || carries && silent >= probeQuiet || silent >= probeIdle && name != wire.StreamEvent {
			due = append(due, name)
		}
	}
	return due, nil
}

// room checks that JetStream stores messages, with the configuration of the first broken stream.
func (c *streamReconciler) room(ctx context.Context) error {
	like := jetstream.StreamConfig{Storage: jetstream.FileStorage, Replicas: 1}
	for _, name := range slices.Sorted(maps.Keys(c.faults)) {
		if stream, err := c.node.JS.Stream(ctx, name); err == nil {
			like = stream.CachedInfo().Config
			break
		}
	}
	return stream.TryScratch(ctx, c.node.NC, c.node.JS, like, probeTimeout)
}

// noRoom records why JetStream stores no messages, if the cause is its store.
func (c *streamReconciler) noRoom(ctx context.Context, why error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // then the reason may be that
	}
	failed := fmt.Errorf("JetStream takes no messages: %w", why)
	for name := range c.faults {
		if errors.Is(why, stream.ErrNotStored) {
			failed = errors.Join(failed, session.New(c.node.Store).NoteStreamFault(ctx, c.lease, name, core.Readable(why)))
		} else { // JetStream is unavailable: a broken stream is found again later
			failed = errors.Join(failed, c.clear(ctx, name))
		}
	}
	return failed
}

// try probes streams concurrently, and acts on the results.
func (c *streamReconciler) try(ctx context.Context, due []string, room bool) error {
	answers, failed := make([]bool, len(due)), make([]error, len(due))
	made := make([]time.Time, len(due))
	var probes sync.WaitGroup
	for i, name := range due {
		probes.Go(func() {
			info, err := c.led(ctx, name)
			if err != nil {
				failed[i] = fmt.Errorf("check stream %s: %w", name, err)
				return
			}
			made[i] = info.Created
			answers[i], failed[i] = stream.Probe(ctx, c.node.NC, c.node.JS, name, probeTimeout)
		})
	}
	probes.Wait()
	for i, name := range due {
		switch {
		case answers[i]:
			c.heard[name] = time.Now()
			failed[i] = errors.Join(failed[i], c.clear(ctx, name))
			c.node.Log.Debug("a stream takes messages", zap.String("stream", name))
		case failed[i] != nil: // it does not exist, or this node lacks the permission to publish to it
		default:
			failed[i] = c.silent(ctx, name, room, made[i])
		}
	}
	return errors.Join(failed...)
}

// led reads a stream. Information from a server that does not lead it is an error.
func (c *streamReconciler) led(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	found, err := c.node.JS.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	info := found.CachedInfo()
	return info, stream.Leads(info.Cluster)
}

func (c *streamReconciler) clear(ctx context.Context, name string) error {
	if _, is := c.faults[name]; !is {
		return nil
	}
	if err := session.New(c.node.Store).ClearStreamFault(ctx, c.lease, name); err != nil {
		return err
	}
	delete(c.faults, name)
	return nil
}

// silent handles a stream that failed a probe. It notes the fault, and the next round checks for room. With room the
// stream is replaced, as are others that fail a probe then, all in one epoch.
func (c *streamReconciler) silent(ctx context.Context, name string, room bool, made time.Time) error {
	info, err := c.led(ctx, name)
	if err != nil {
		return fmt.Errorf("stream %s took no message, and nothing is heard of it: %w", name, err)
	}
	if !info.Created.Equal(made) {
		return nil // the probe may have gone to the previous stream
	}
	if _, known := c.faults[name]; !known {
		c.node.Log.Warn("a stream takes no messages, although its server answers", zap.String("stream", name))
		c.faults[name] = time.Now()
		if err := session.New(c.node.Store).NoteStreamFault(ctx, c.lease, name, ""); err != nil {
			return err
		}
	}
	if !room {
		c.cfg.Try()
		return nil
	}
	if info.Config.Replicas > 1 && time.Since(c.faults[name]) < replicatedTimeout {
		return nil
	}
	return c.replace(ctx, name)
}

// replace deletes a broken stream, so that nodes recreate it, in a new epoch: slices are reissued. Before that, dead
// letters are stored, and recent events marked as unpublished, so that a crash in between loses none.
func (c *streamReconciler) replace(ctx context.Context, name string) error {
	switch name {
	case wire.StreamDead:
		if left, err := c.lettersLeft(ctx); err != nil || left {
			return err
		}
	case wire.StreamEvent:
		if err := session.New(c.node.Store).PublishAgain(ctx, c.lease, eventsLately); err != nil {
			return err
		}
	}
	c.node.Log.Warn("replacing a stream that could not be written once and takes nothing since",
		zap.String("stream", name))
	if err := c.node.JS.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("replace stream %s: %w", name, err)
	}
	c.node.Look()
	if name != wire.StreamEvent {
		return nil
	}
	// The old stream may have deduplicated events published in between.
	err := session.New(c.node.Store).PublishAgain(ctx, c.lease, eventsLately)
	core.Signal(c.node.Publish)
	return err
}

func (k *Keeper) lettersLeft(ctx context.Context) (bool, error) {
	consumer, err := k.node.JS.Consumer(ctx, wire.StreamDead, wire.DeadLetterConsumer)
	if err != nil {
		return true, fmt.Errorf("find dead letters: %w", err)
	}
	info := consumer.CachedInfo()
	return info.NumPending > 0 || info.NumAckPending > 0, nil
}
