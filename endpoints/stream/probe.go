package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// A server may answer for a stream and take nothing into it: the file store of nats-server keeps its first write error,
// as on a full disk, until the stream is made again or the server is started again. It does not say so. A message that
// it does not acknowledge is all there is to see.

// probeToken stands in a probe's subject in the place of an endpoint's name, and can be none.
const probeToken = "$probe"

// ProbeStream is a stream that is there for moments only, to find out whether JetStream can take a message at all.
const ProbeStream = "TRANCHE_PROBE"

// scratchSubject is what ProbeStream takes.
const scratchSubject = "tranche.probe"

// scratchBytes is more than a full disk has left over in blocks that are not quite full.
const scratchBytes = 64 << 10

// IsProbe reports whether a message was only published to see whether its stream takes any.
func IsProbe(subject string) bool { return strings.HasSuffix(subject, "."+probeToken) }

// probeSubject is where a stream's probes go.
func probeSubject(stream string) string {
	switch stream {
	case wire.StreamWork:
		return wire.WorkPrefix + probeToken
	case wire.StreamReply:
		return wire.ReplyPrefix + probeToken
	case wire.StreamStage:
		return wire.StagePrefix + probeToken
	case wire.StreamFlow:
		return wire.FlowPrefix + probeToken
	case wire.StreamDead:
		return wire.DeadPrefix + probeToken
	default:
		return wire.EventPrefix + probeToken
	}
}

// Probe publishes a message that says nothing into one of our streams. It reports whether the server has answered
// at all: a stream that is full, or whose settings refuse the message, is one that answers. An error says that it could
// not be tried. Who reads the stream passes such messages over (see [IsProbe]); where no one does it is deleted again.
func Probe(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, stream string, patience time.Duration,
) (answers bool, err error) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	subject := probeSubject(stream)
	var ack *jetstream.PubAck
	err = During(timed, nc, func(ctx context.Context) (err error) {
		ack, err = js.PublishMsg(ctx, &nats.Msg{Subject: subject,
			Header: nats.Header{wire.HeaderVersion: {wire.ProtocolVersion}}},
			jetstream.WithExpectStream(stream), jetstream.WithRetryAttempts(0))
		return err
	}, subject)
	var answer *jetstream.APIError
	switch {
	case err == nil:
		return true, unprobe(ctx, js, stream, ack.Sequence)
	case errors.As(err, &answer):
		return true, nil
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && nc.IsConnected():
		return false, nil
	default:
		return false, fmt.Errorf("probe stream %s: %w", stream, err)
	}
}

// unprobe deletes a probe that no one would read.
func unprobe(ctx context.Context, js jetstream.JetStream, stream string, sequence uint64) error {
	if stream == wire.StreamReply || stream == wire.StreamDead || stream == wire.StreamEvent {
		return nil
	}
	at, err := js.Stream(ctx, stream)
	if err == nil {
		err = at.DeleteMsg(ctx, sequence)
	}
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete a probe of stream %s: %w", stream, err)
	}
	return nil
}

// ErrNotStored is what JetStream says that is there and cannot store a message.
var ErrNotStored = errors.New("JetStream stores no messages")

// TryScratch makes a stream like another one, publishes a message of some size to it and deletes it. Its error says why
// JetStream takes nothing at the moment. It is an ErrNotStored when JetStream was there to say so, or has made the
// stream and not stored the message: the disk is full. Otherwise nothing is known, as when a cluster has no quorum.
func TryScratch(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, like jetstream.StreamConfig,
	patience time.Duration,
) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return During(ctx, nc, func(ctx context.Context) error {
		if err := js.DeleteStream(ctx, ProbeStream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: ProbeStream, Subjects: []string{scratchSubject},
			Storage: like.Storage, Replicas: like.Replicas, Placement: like.Placement})
		if err == nil {
			if _, err = js.Publish(ctx, scratchSubject, make([]byte, scratchBytes), jetstream.WithRetryAttempts(0)); err != nil {
				err = fmt.Errorf("%w: a message was not acknowledged: %w", ErrNotStored, err)
			}
		} else if answer, is := errors.AsType[*jetstream.APIError](err); is && answer.Code != statusUnavailable {
			err = fmt.Errorf("%w: %w", ErrNotStored, err)
		}
		if gone := js.DeleteStream(ctx, ProbeStream); err == nil {
			err = gone
		}
		return err
	}, scratchSubject, "$JS.API.STREAM.CREATE."+ProbeStream, "$JS.API.STREAM.DELETE."+ProbeStream)
}
