package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// maxDeliver is that of the page: what has been delivered so often is left to the nodes.
const maxDeliver = 20

// makeStreams makes the streams and the consumer of the endpoint, on a server of the suite's own.
func (n *node) makeStreams(ctx context.Context) error {
	return n.makeStreamsWith(ctx, stream.Config{Memory: true}, ownAckWait)
}

func (n *node) makeStreamsWith(ctx context.Context, config stream.Config, ackWait time.Duration) error {
	if _, err := stream.Ensure(ctx, n.js, config); err != nil {
		return err
	}
	_, err := n.js.CreateOrUpdateConsumer(ctx, wire.StreamWork, n.consumerConfig(ackWait))
	if err != nil {
		return fmt.Errorf("make the consumer of %s: %w", n.config.Endpoint, err)
	}
	return nil
}

// consumerConfig is the consumer of the page.
func (n *node) consumerConfig(ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: wire.ConsumerName(n.config.Endpoint), FilterSubject: wire.WorkSubject(n.config.Endpoint),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: maxDeliver, MaxAckPending: 10_000,
		MaxWaiting: 4096,
	}
}

// remakeStreams deletes the streams of requests and replies and makes them anew, as after the loss of a server.
func (n *node) remakeStreams(ctx context.Context) error {
	for _, name := range []string{wire.StreamWork, wire.StreamReply} {
		if err := n.js.DeleteStream(ctx, name); err != nil {
			return fmt.Errorf("delete stream %s: %w", name, err)
		}
	}
	return n.makeStreams(ctx)
}

// checkUnused returns an error when a node or somebody else's work is on the server.
func (n *node) checkUnused(ctx context.Context) error {
	for range 20 { // a node's reads have short gaps
		recorder, err := n.js.Consumer(ctx, wire.StreamReply, wire.RecorderConsumer)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			break
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("there is no stream %s on this server; make the streams by starting a node once, or leave "+
				"--nats out and give the command that starts the service", wire.StreamReply)
		}
		if err != nil {
			return fmt.Errorf("look for a node: %w", err)
		}
		if recorder.CachedInfo().NumWaiting > 0 {
			return errors.New("a node reads the replies on this server, and would take the suite's; stop it, or leave " +
				"--nats out and give the command that starts the service")
		}
		_ = backoff.Sleep(ctx, 25*time.Millisecond)
	}
	for subject, stream := range n.subjects() {
		held, err := n.held(ctx, stream, subject)
		if err != nil {
			return err
		}
		if held > 0 {
			return fmt.Errorf("%s holds %d messages of %s; the suite removes what it made and would remove them too: run it "+
				"on another server, or when they are done", stream, held, subject)
		}
	}
	return nil
}

// subjects are what the checks leave messages on, with their streams.
func (n *node) subjects() map[string]string {
	return map[string]string{
		wire.WorkSubject(n.config.Endpoint):  wire.StreamWork,
		n.laneSubject():                      wire.StreamWork,
		wire.ReplySubject(n.config.Endpoint): wire.StreamReply,
		"tranche.stage." + caller + ".>":     wire.StreamStage,
	}
}

func (n *node) held(ctx context.Context, stream, subject string) (uint64, error) {
	s, err := n.js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	var held uint64
	for _, count := range info.State.Subjects {
		held += count
	}
	return held, nil
}

// clean removes what a check has left.
func (n *node) clean(ctx context.Context) error {
	for subject, stream := range n.subjects() {
		s, err := n.js.Stream(ctx, stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		if err != nil {
			return fmt.Errorf("remove what a check left in %s: %w", stream, err)
		}
	}
	return nil
}

// stored reports whether a stream has a message of the slice on the subject, the last one there.
func (n *node) stored(ctx context.Context, stream, subject string, r *request) (bool, error) {
	s, err := n.js.Stream(ctx, stream)
	if err != nil {
		return false, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	msg, err := s.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	return msg.Header.Get(wire.HeaderSlice) == r.slice(), nil
}

// fillReplies has the reply stream refuse messages until the returned function is called.
func (n *node) fillReplies(ctx context.Context) (makeRoom func() error, err error) {
	s, err := n.js.Stream(ctx, wire.StreamReply)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", wire.StreamReply, err)
	}
	before := s.CachedInfo().Config
	full := before
	full.MaxBytes = 1
	if _, err := n.js.UpdateStream(ctx, full); err != nil {
		return nil, fmt.Errorf("take the room from stream %s: %w", wire.StreamReply, err)
	}
	return func() error {
		ctx, cancel := n.config.lasting(context.WithoutCancel(ctx), patience)
		defer cancel()
		if _, err := n.js.UpdateStream(ctx, before); err != nil {
			return fmt.Errorf("give stream %s its room back: %w", wire.StreamReply, err)
		}
		return nil
	}, nil
}
