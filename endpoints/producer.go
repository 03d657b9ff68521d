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
	// DefaultCollectTimeout is how long an add may take when its context has no deadline.
	DefaultCollectTimeout = 30 * time.Second
	// collectTry is how long a node may take to answer before another is asked.
	collectTry = 5 * time.Second
	// firstCollectPause is how long a producer waits after a try that failed. It is doubled each time, up to
	// longestCollectPause.
	firstCollectPause   = 50 * time.Millisecond
	longestCollectPause = 2 * time.Second

	// maxCollectOps bounds the operations of one message. It takes one transaction.
	maxCollectOps = 10_000
	// collectRoom is left in a message for its headers.
	collectRoom = 4 << 10
)

// contentTypeNDJSON says that each line of a body is one operation.
const contentTypeNDJSON = "application/x-ndjson"

// Producer adds operations to a collector, over core NATS. It is safe for concurrent use, and many goroutines may add
// at once: the node that answers stores what comes together in one transaction.
//
// It needs to publish to CollectSubject and to read its inbox. It knows no database.
type Producer struct {
	nc        *nats.Conn
	collector string
}

// NewProducer returns a producer for a collector. It sends nothing: whether there is such a collector is told by the
// first add.
func NewProducer(nc *nats.Conn, collector string) (*Producer, error) {
	if nc == nil {
		return nil, errors.New("producer: a NATS connection is needed")
	}
	if err := wire.ValidateName(collector); err != nil {
		return nil, fmt.Errorf("producer: collector: %w", err)
	}
	return &Producer{nc: nc, collector: collector}, nil
}

// Add returns when all operations are stored: what it then counts survives everything. They wait in the order in which
// they are given.
//
// An operation without an ID is given a random one, so that a try that was not answered can be made again without
// storing it twice. What may pass is retried until ctx ends, or for 30 s if it has no deadline.
//
// What a try has stored whose answer was lost counts as duplicates in the next one: Added and Duplicates together are
// what is stored.
//
// The operations are sent in as few messages as they fit, one at a time, each of which is stored as a whole or
// not at all. When there is an error the counts are those of the messages before. It is a *CollectError when a node has
// refused them, a *PermissionError when NATS has, or an *UnstoredError when no one has answered.
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

// message takes as many operations as fit, from first on, and at least that one.
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

// send asks nodes until one has stored a message, or refused it permanently. When its time is over it tells why the
// last try failed that came to its end: the time may be over in the middle of one, which says nothing.
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

// ask sends a message once.
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
