package endpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// DefaultCollectTimeout is the timeout of Add when its context has no deadline.
	DefaultCollectTimeout = 30 * time.Second
	// collectTry is how long a node may take to answer before another one is tried.
	collectTry = 5 * time.Second
	// firstCollectPause is the pause after a failed attempt. It doubles up to longestCollectPause.
	firstCollectPause   = 50 * time.Millisecond
	longestCollectPause = 2 * time.Second

	// maxCollectOps bounds the operations of one message, which a node stores in one transaction.
	maxCollectOps = 10_000
	// collectRoom is reserved for a message's headers.
	collectRoom = 4 << 10
)

// contentTypeNDJSON is the type of a body with one operation per line.
const contentTypeNDJSON = "application/x-ndjson"

// Producer adds operations to a collector over core NATS. It is safe for concurrent use, and many goroutines should
// share one: the node stores concurrent adds in one transaction. It must be allowed to publish to CollectSubject and
// to subscribe to its inbox.
type Producer struct {
	nc        *nats.Conn
	collector string
}

// NewProducer returns a producer for a collector. It does not check that the collector exists; the first Add does.
func NewProducer(nc *nats.Conn, collector string) (*Producer, error) {
	if nc == nil {
		return nil, errors.New("producer: a NATS connection is needed")
	}
	if err := wire.ValidateName(collector); err != nil {
		return nil, fmt.Errorf("producer: collector: %w", err)
	}
	return &Producer{nc: nc, collector: collector}, nil
}

// Add sends operations and returns once all are stored durably, in the given order. Temporary errors are retried
// until ctx ends, or for 30 s if ctx has no deadline.
//
// An operation without an ID gets a random one, so that a retry does not store it twice. Operations stored by an
// attempt whose answer was lost count as Duplicates in the next, so Added + Duplicates is the number stored.
//
// The operations are sent in as few messages as possible, one at a time; each is stored entirely or not at all. With
// an error, the counts are those of the messages before it. The error is a *CollectError if a node refused the
// operations, a *PermissionError if NATS did, and an *UnstoredError if no node answered.
func (p *Producer) Add(ctx context.Context, ops ...wire.Operation) (wire.Collected, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultCollectTimeout)
		defer cancel()
	}
	var sum wire.Collected
	lines, err := wire.EncodeOperations(ops, nuid.Next)
	if err != nil {
		return sum, fmt.Errorf("add to collector %s: %w", p.collector, err)
	}
	for first := 0; first < len(lines); {
		body, next := p.message(lines, first)
		if most := int(p.nc.MaxPayload()); most > 0 && len(body) > most {
			return sum, &wire.CollectError{Collector: p.collector, Code: wire.CollectTooLarge,
				Message: fmt.Sprintf("operation %d has %d bytes, and the NATS "+
					"server takes at most %d; add it over HTTP, or send what it is about by reference", first+1, len(body), most)}
		}
		done, err := p.send(ctx, body)
		if err != nil {
			return sum, err
		}
		sum.Added += done.Added
		sum.Duplicates += done.Duplicates
		first = next
	}
	return sum, nil
}

// message takes as many operations as fit, starting with first, and at least one.
func (p *Producer) message(lines [][]byte, first int) (body []byte, next int) {
	room := int(p.nc.MaxPayload()) - collectRoom
	for next = first; next < len(lines) && next-first < maxCollectOps; next++ {
		if next > first && len(body)+len(lines[next]) > room {
			break
		}
		body = append(body, lines[next]...)
	}
	return body, next
}

// send retries until a node has stored or permanently refused the message. On a timeout it reports the last completed
// attempt; one cut off by the deadline says nothing.
func (p *Producer) send(ctx context.Context, body []byte) (wire.Collected, error) {
	pauses := backoff.Exponential{First: firstCollectPause, Longest: longestCollectPause}
	var reason error
	for {
		done, err := p.ask(ctx, body)
		if refused, ok := errors.AsType[*wire.CollectError](err); err == nil || stream.Denied(err) || ok &&
			!refused.Temporary() ||
			errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrConnectionClosed) {
			return done, err
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		if pauses.Wait(ctx) != nil {
			return wire.Collected{}, &wire.UnstoredError{Collector: p.collector, Err: errors.Join(context.Cause(ctx), reason)}
		}
	}
}

func (p *Producer) ask(ctx context.Context, body []byte) (wire.Collected, error) {
	ctx, cancel := context.WithTimeout(ctx, collectTry)
	defer cancel()
	msg := nats.NewMsg(wire.CollectSubject(p.collector))
	msg.Header.Set(wire.HeaderVersion, wire.ProtocolVersion)
	msg.Header.Set(wire.HeaderContentType, contentTypeNDJSON)
	msg.Data = body
	var answer *nats.Msg
	err := stream.During(ctx, p.nc, func(ctx context.Context) (err error) {
		answer, err = p.nc.RequestMsgWithContext(ctx, msg)
		return err
	}, msg.Subject)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return wire.Collected{}, &wire.CollectError{Collector: p.collector, Code: wire.CollectUnavailable,
			Message: "no node listens for " + msg.Subject}
	case err != nil:
		return wire.Collected{}, fmt.Errorf("add to collector %s: %w", p.collector, err)
	}
	var reply wire.CollectReply
	if err := json.Unmarshal(answer.Data, &reply); err != nil {
		return wire.Collected{}, fmt.Errorf("add to collector %s: read the answer: %w", p.collector, err)
	}
	if reply.Error != nil {
		reply.Error.Collector = p.collector
		return wire.Collected{}, reply.Error
	}
	return reply.Collected, nil
}
