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

// A server may serve a stream but store nothing: nats-server's file store keeps its first write error, for example
// from a full disk, until the stream is recreated or the server restarted. It does not report this; only
// acknowledgements are missing.

// probeToken replaces the endpoint in a probe's subject. It is not a valid name.
const probeToken = "$probe"

// ProbeStream exists only briefly, to test whether JetStream can store a message.
const ProbeStream = "TRANCHE_PROBE"

const scratchSubject = "tranche.probe"

// scratchBytes exceeds what partly filled blocks of a full disk can take.
const scratchBytes = 64 << 10

// IsProbe reports whether a message only tests its stream.
func IsProbe(subject string) bool { return strings.HasSuffix(subject, "."+probeToken) }

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

// Probe publishes an empty message to a stream and reports whether the server answers, even with a refusal such as a
// full stream. An error means that it could not be tested. Readers skip probes (see [IsProbe]); in streams without
// such a reader the probe is deleted.
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

// unprobe deletes a probe that has no reader.
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

// ErrNotStored means that JetStream is available but cannot store messages.
var ErrNotStored = errors.New("JetStream stores no messages")

// TryScratch creates a stream like another one, publishes a message and deletes the stream. Its error is why
// JetStream stores nothing: ErrNotStored if JetStream refused or did not acknowledge the message (the disk is full),
// else unknown, for example a cluster without quorum.
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
