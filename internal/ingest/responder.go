package ingest

import (
	"cmp"
	"context"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// serverTimeout limits the wait for the server to confirm a subscription, and to deliver the rest when the node
// stops.
const serverTimeout = 2 * time.Second

// ResponderConfig says what to answer, and how much concurrently.
type ResponderConfig struct {
	Subject string // with wildcards
	Queue   string // queue group of the nodes: each request reaches one

	// Answer handles and answers a request before its context ends.
	Answer func(ctx context.Context, msg *nats.Msg)
	// Timeout limits Answer.
	Timeout time.Duration
	// Refuse answers a request beyond the limits or after Close. It must not block.
	Refuse func(msg *nats.Msg)

	MaxRequests int   // in progress
	MaxBytes    int64 // of these; a single request of any size is accepted
}

// Responder answers the requests of a subject, many concurrently, so that one that waits for PostgreSQL blocks no
// other. A request is answered or refused immediately; one taken before [Responder.Close] has its answer when that
// returns nil. Safe for concurrent use.
type Responder struct {
	config ResponderConfig
	nc     *nats.Conn
	sub    *nats.Subscription

	ctx    context.Context //nolint:containedctx // of requests in progress, which Close interrupts
	cancel context.CancelFunc
	room   requestRoom

	mu     sync.Mutex
	closed bool // nothing more is accepted; guards additions to work
	work   sync.WaitGroup
}

// NewResponder accepts requests until Close. Without a connection it starts as soon as there is one.
func NewResponder(nc *nats.Conn, config ResponderConfig) (*Responder, error) {
	r := &Responder{config: config, nc: nc, room: requestRoom{requests: int64(config.MaxRequests), bytes: config.MaxBytes}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	if r.sub, err = nc.QueueSubscribe(config.Subject, config.Queue, r.take); err != nil {
		r.cancel()
		return nil, fmt.Errorf("listen for requests to %s: %w", config.Subject, err)
	}
	if nc.IsConnected() {
		_ = nc.FlushTimeout(serverTimeout) // otherwise the server learns of it later
	}
	return r, nil
}

func (r *Responder) take(msg *nats.Msg) {
	if !wire.Answerable(msg) {
		return
	}
	if !r.begin(msg) {
		r.config.Refuse(msg)
	}
}

func (r *Responder) begin(msg *nats.Msg) bool {
	size := int64(len(msg.Data))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !r.room.enter(size) {
		return false
	}
	r.work.Go(func() {
		defer r.room.leave(size)
		ctx, cancel := context.WithTimeout(r.ctx, r.config.Timeout)
		defer cancel()
		r.config.Answer(ctx, msg)
	})
	return true
}

// Close stops accepting requests and waits for those in progress; if ctx ends first, it interrupts them.
func (r *Responder) Close(ctx context.Context) error {
	defer r.cancel()
	r.drain(ctx)
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() { r.work.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		left := r.room.taken.Load()
		r.cancel()
		<-ended // each ends with its context
		return fmt.Errorf("%d requests to %s were interrupted: %w", left, r.config.Subject, ctx.Err())
	}
}

func (r *Responder) drain(ctx context.Context) {
	closed := r.sub.StatusChanged(nats.SubscriptionClosed)
	if !r.nc.IsConnected() || r.sub.Drain() != nil { // otherwise the end of the drain is not reported
		_ = r.sub.Unsubscribe()
		return
	}
	timer := time.NewTimer(serverTimeout)
	defer timer.Stop()
	select {
	case <-closed:
		return
	case <-timer.C: // the connection is lost, with what was sent on it
	case <-ctx.Done():
	}
	_ = r.sub.Unsubscribe()
}

type requestRoom struct {
	requests, bytes int64 // limits

	taken, held atomic.Int64
}

func (r *requestRoom) enter(size int64) bool {
	if r.taken.Add(1) > r.requests {
		r.taken.Add(-1)
		return false
	}
	if held := r.held.Add(size); held > r.bytes && held > size {
		r.held.Add(-size)
		r.taken.Add(-1)
		return false
	}
	return true
}

func (r *requestRoom) leave(size int64) {
	r.held.Add(-size)
	r.taken.Add(-1)
}

// BadJSON explains why a JSON request called name could not be decoded: the place of the first mistake, and a text with
// it. The text of another error, as of a reader, is empty.
func BadJSON(name string, err error) (place, text string) {
	wrong, ok := errors.AsType[*json.SemanticError](err)
	if syntax, bad := errors.AsType[*jsontext.SyntacticError](err); bad && !ok {
		if syntax.ByteOffset == 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			return "", name + " is empty; send one JSON object"
		}
		return "", fmt.Sprintf("%s is not valid JSON at byte %d: %v", name, syntax.ByteOffset+1, syntax.Err)
	}
	if !ok {
		return "", ""
	}
	place = PlaceOf(wrong.JSONPointer)
	if errors.Is(wrong.Err, json.ErrUnknownName) {
		return place, fmt.Sprintf("%s has an unknown member %.100q; leave it out", name, place)
	}
	at := fmt.Sprintf("%.100s", cmp.Or(place, name))
	if wrong.GoType == reflect.TypeFor[time.Time]() {
		return place, at + " must be a time as in RFC 3339, like 2026-11-24T20:15:00Z"
	}
	if _, own := reflect.TypeAssert[encoding.TextUnmarshaler](reflect.New(wrong.GoType)); own && wrong.Err != nil {
		return place, fmt.Sprintf("%s: %.200s", at, wrong.Err)
	}
	if len(wrong.JSONValue) > 0 {
		return place, fmt.Sprintf("%s must be %s, not %.100s", at, wanted(wrong.GoType), wrong.JSONValue)
	}
	return place, at + " must be " + wanted(wrong.GoType)
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "an array"
	case reflect.Array:
		return fmt.Sprintf("an array of %d values", t.Len())
	case reflect.Struct, reflect.Map:
		return "a JSON object"
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Float64:
		return "a number"
	default:
		return fmt.Sprintf("a whole number up to %d", uint64(1)<<(t.Bits()-1)-1)
	}
}

// PlaceOf returns a place in JSON as names and indexes, like ids[3].
func PlaceOf(at jsontext.Pointer) string {
	place := ""
	for name := range at.Tokens() {
		switch {
		case strings.Trim(name, "0123456789") == "" && name != "" && place != "":
			place += "[" + name + "]"
		case place != "":
			place += "." + name
		default:
			place = name
		}
	}
	return place
}
