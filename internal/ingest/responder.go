package ingest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// serverTimeout is how long the server is given to take a subscription, and to send what it took for a stopping node.
const serverTimeout = 2 * time.Second

// ResponderConfig says what is answered, and how much of it at once.
type ResponderConfig struct {
	Subject string // with wildcards
	Queue   string // of the nodes: each request reaches one of them

	// Answer works on a request and answers it, before its context ends.
	Answer func(ctx context.Context, msg *nats.Msg)
	// Timeout bounds that.
	Timeout time.Duration
	// Refuse answers a request that there is no room for, or that comes after the end. It is not to wait for anything.
	Refuse func(msg *nats.Msg)

	MaxRequests int   // at work
	MaxBytes    int64 // of these; one that is alone is taken, however large it is
}

// Responder answers the requests of a subject, many concurrently, so that one that waits for PostgreSQL blocks no
// other. A request is answered or refused immediately; one taken before [Responder.Close] has its answer when that
// returns nil. Safe for concurrent use.
type Responder struct {
	config ResponderConfig
	nc     *nats.Conn
	sub    *nats.Subscription

	ctx    context.Context //nolint:containedctx // that of requests in progress, which Close breaks off
	cancel context.CancelFunc
	room   requestRoom

	mu     sync.Mutex
	closed bool // nothing more is taken; guards that work grows
	work   sync.WaitGroup
}

// NewResponder takes requests from now on, until Close. Without a connection it takes them as soon as there is one.
func NewResponder(nc *nats.Conn, config ResponderConfig) (*Responder, error) {
	r := &Responder{config: config, nc: nc, room: requestRoom{requests: int64(config.MaxRequests), bytes: config.MaxBytes}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	if r.sub, err = nc.QueueSubscribe(config.Subject, config.Queue, r.take); err != nil {
		r.cancel()
		return nil, fmt.Errorf("listen for requests to %s: %w", config.Subject, err)
	}
	if nc.IsConnected() {
		_ = nc.FlushTimeout(serverTimeout) // else the server knows of it later
	}
	return r, nil
}

// take is called for each message, one at a time.
func (r *Responder) take(msg *nats.Msg) {
	if !asked(msg) {
		return
	}
	if !r.begin(msg) {
		r.config.Refuse(msg)
	}
}

// Where whoever asks may be answered: an inbox, or, of another account, what the server has made of one.
const (
	inboxes = "_INBOX"
	mapped  = "_R_."
)

// asked reports whether a message is a request of someone who may be answered. NATS does not check where an answer is
// to go, so it would go there with the rights of this process. Nor is what a stream gives out a request: a server
// published it, on behalf of someone who may not ask. Neither is told: there is no one who could be.
func asked(msg *nats.Msg) bool {
	_, relayed := msg.Header[jetstream.StreamHeader] // empty or not: the server adds its own behind what is there
	return !relayed &&
		(msg.Reply == "" || strings.HasPrefix(msg.Reply, inboxes) || strings.HasPrefix(msg.Reply, mapped))
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

// Close takes no more requests, and lets those end that were taken; when ctx ends first, it breaks them off.
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

// drain returns when nothing comes any more.
func (r *Responder) drain(ctx context.Context) {
	closed := r.sub.StatusChanged(nats.SubscriptionClosed)
	if !r.nc.IsConnected() || r.sub.Drain() != nil { // then no one says when it is drained
		_ = r.sub.Unsubscribe()
		return
	}
	timer := time.NewTimer(serverTimeout)
	defer timer.Stop()
	select {
	case <-closed:
		return
	case <-timer.C: // the connection is lost, and what was sent with it
	case <-ctx.Done():
	}
	_ = r.sub.Unsubscribe()
}

// requestRoom is what requests at work take up.
type requestRoom struct {
	requests, bytes int64 // at most

	taken, held atomic.Int64
}

// enter takes room for a request, if there is some.
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
