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
	// probeTimeout is how long JetStream may take to acknowledge a probe, or to make a stream for a moment. One that is
	// only slow is not taken for broken: see streamReconciler.
	probeTimeout = 3 * time.Second
	// probeQuiet is how long a stream may take nothing, while requests are in progress, until it is tried; probeIdle is
	// the same while none are.
	probeQuiet = 5 * time.Second
	probeIdle  = time.Minute
	// probePause is the time between two looks at what is to be tried.
	probePause = time.Second
	// replicatedTimeout is how long a replicated stream has to take nothing until it is replaced: a server whose disk is
	// full leaves the stream to the others.
	replicatedTimeout = 30 * time.Second
	// eventsLately is how far back events are published again when their stream had to be replaced.
	eventsLately = 10 * time.Minute
)

// ourStreams are all of them; of the last two PostgreSQL does not know what is in them.
func ourStreams() []string {
	carry := sliceStreams()
	return append(carry[:], wire.StreamDead, wire.StreamEvent)
}

// suspects are the streams that did not acknowledge what this node published.
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

// Suspect has the leader try a stream that did not acknowledge a message.
func (k *Keeper) Suspect(stream string) {
	k.suspects.add(stream)
	k.cfg.Try()
}

// Trying is the leader task that tries streams of which nothing was heard, and replaces those that are broken.
func (k *Keeper) Trying() func(context.Context, workqueue.Lease) (time.Duration, error) {
	c := &streamReconciler{Keeper: k}
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if !k.node.NC.IsConnected() {
			return probePause, nil
		}
		if lease != c.lease {
			*c = streamReconciler{Keeper: k, lease: lease, heard: map[string]time.Time{}, last: map[string]uint64{}}
		}
		return probePause, c.round(ctx)
	}
}

// streamReconciler finds streams that take no messages although their server answers, which is what nats-server leaves
// of a file store that could not be written once. A stream is replaced when three things are so: it has not
// acknowledged a probe; then JetStream has taken a message into a stream made for that moment, so that neither the disk
// nor the server nor a cluster without quorum is what it waits for; and then it has not acknowledged another probe. A
// server that is slow, stopped or away fails the second.
//
// It is for one goroutine.
type streamReconciler struct {
	*Keeper

	lease  workqueue.Lease
	heard  map[string]time.Time // when each was last seen to take a message
	last   map[string]uint64    // sequences
	faults map[string]time.Time // those that take none, and since when; nil: not read yet
}

func (c *streamReconciler) round(ctx context.Context) error {
	if c.faults == nil {
		known, err := session.New(c.node.Store).StreamFaults(ctx)
		if err != nil {
			return err
		}
		c.faults = map[string]time.Time{}
		for _, f := range known {
			c.faults[f.Stream] = time.Now() // by this clock; it is counted again
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

// due returns the streams to try: all of them when one takes nothing, those that did not acknowledge what this node
// published, and those that took nothing for a while.
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
		// What is published to the events, all their readers see: they are tried on suspicion only.
		if suspected[name] || carries && silent >= probeQuiet || silent >= probeIdle && name != wire.StreamEvent {
			due = append(due, name)
		}
	}
	return due, nil
}

// room finds out whether JetStream takes a message at all, as it keeps the first stream that takes none.
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

// noRoom tells everybody what keeps JetStream from taking messages, when that is its store.
func (c *streamReconciler) noRoom(ctx context.Context, why error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // then the reason may be that
	}
	failed := fmt.Errorf("JetStream takes no messages: %w", why)
	for name := range c.faults {
		if errors.Is(why, stream.ErrNotStored) {
			failed = errors.Join(failed, session.New(c.node.Store).NoteStreamFault(ctx, c.lease, name, core.Readable(why)))
		} else { // it is not there: whatever was the matter with the stream is seen again when it is
			failed = errors.Join(failed, c.clear(ctx, name))
		}
	}
	return failed
}

// try probes streams, at the same time, and acts on what that says.
func (c *streamReconciler) try(ctx context.Context, due []string, room bool) error {
	answers, failed := make([]bool, len(due)), make([]error, len(due))
	made := make([]time.Time, len(due))
	var probes sync.WaitGroup
	for i, name := range due {
		probes.Go(func() {
			info, err := c.led(ctx, name)
			if err != nil {
				failed[i] = fmt.Errorf("look at stream %s: %w", name, err)
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
		case failed[i] != nil: // it is not there, or this node may not publish to it
		default:
			failed[i] = c.silent(ctx, name, room, made[i])
		}
	}
	return errors.Join(failed...)
}

// led looks at a stream. What a server says that does not lead it, or has lost the others, is no answer.
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

// silent acts on a stream that has not acknowledged a probe: it is noted, and the next round looks whether there is
// room; when that has found some, it is replaced, and so are others that do not acknowledge a probe then, all in one
// epoch.
func (c *streamReconciler) silent(ctx context.Context, name string, room bool, made time.Time) error {
	info, err := c.led(ctx, name)
	if err != nil {
		return fmt.Errorf("stream %s took no message, and nothing is heard of it: %w", name, err)
	}
	if !info.Created.Equal(made) {
		return nil // the probe may have gone to the one before
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

// replace deletes a broken stream, so that nodes make it again. What carries slices is reissued then, since the
// stream's new time of making begins an epoch. Before that, letters are taken in, and events that were told lately are
// noted as not told: whoever dies in between, or cannot write that down, leaves a stream that is still to be replaced.
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
	// The stream knew the ids of what it had, and may have taken them for told in between.
	err := session.New(c.node.Store).PublishAgain(ctx, c.lease, eventsLately)
	core.Signal(c.node.Publish)
	return err
}

// lettersLeft reports whether dead letters lie in their stream that no node has taken in yet.
func (k *Keeper) lettersLeft(ctx context.Context) (bool, error) {
	consumer, err := k.node.JS.Consumer(ctx, wire.StreamDead, wire.DeadLetterConsumer)
	if err != nil {
		return true, fmt.Errorf("look for dead letters: %w", err)
	}
	info := consumer.CachedInfo()
	return info.NumPending > 0 || info.NumAckPending > 0, nil
}
