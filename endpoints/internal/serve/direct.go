package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	// directShare is how many direct requests may wait for each slot, LeastDirect how many may in any case.
	directShare = 4
	// LeastDirect is the least of that.
	LeastDirect = 16
	// directBytes bounds what direct requests take that are at work or wait.
	directBytes = 16 << 20
	// directBacklog bounds what nats.go keeps of an endpoint until it is looked at, which takes no time.
	directBacklog = 4096
	// directDrain is how long the server is given to send what it took for an endpoint that stops.
	directDrain = 2 * time.Second
)

// direct takes requests over core NATS. No one persists them: one that cannot be taken is answered so at once.
type direct struct {
	server *Server
	scope  Scope
	held   atomic.Int64
	bytes  atomic.Int64

	mu      sync.Mutex
	stopped bool // no more are taken
	jobs    sync.WaitGroup
}

// runDirect takes direct requests until ctx ends and all that were taken have been answered.
func (e *Server) runDirect(ctx context.Context, scope Scope) error {
	d := &direct{server: e, scope: scope}
	e.direct.Store(d)
	sub, err := e.Host.NC.QueueSubscribe(wire.DirectSubject(e.Name), wire.DirectQueue, d.take)
	if err == nil {
		err = sub.SetPendingLimits(directBacklog, 2*directBytes)
	}
	if err != nil {
		return fmt.Errorf("take direct requests for endpoint %s: %w", e.Name, err)
	}
	<-ctx.Done()
	d.drain(sub)
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.jobs.Wait()
	return nil
}

// drain has the server send no more. What it has sent is taken, and answered as not begun.
func (d *direct) drain(sub *nats.Subscription) {
	closed := sub.StatusChanged(nats.SubscriptionClosed)
	if err := sub.Drain(); err != nil {
		if !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			d.server.Log.Warn("direct requests cannot be drained; some may stay without an answer", zap.Error(err))
		}
		return
	}
	timer := time.NewTimer(directDrain)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C: // the connection is lost, and what was sent with it
		_ = sub.Unsubscribe()
	}
}

// take is called for each message, one at a time.
func (d *direct) take(msg *nats.Msg) {
	e := d.server
	to, err := wire.ParseReturn(msg.Header.Get(wire.HeaderReplyTo))
	if err != nil || to.Call == "" || to.Callee != e.Name {
		e.Log.Warn("a direct request does not say how its caller is answered; it is dropped",
			append(OfHeader(msg.Header), zap.Error(err))...)
		return
	}
	size := int64(len(msg.Data))
	if d.held.Load() >= int64(max(LeastDirect, directShare*e.Slots.Len())) ||
		d.bytes.Load() > 0 && d.bytes.Load()+size > directBytes {
		d.refuse(to, msg, wire.NewSlotError(wire.CodeOverloaded,
			fmt.Sprintf("the service has %d requests for endpoint %s waiting; "+
				"try again later, start more instances, or raise its concurrency", d.held.Load(), e.Name), true))
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		d.refuse(to, msg, wire.NewSlotError(wire.CodeShutdown, wire.ErrShutdown.Error(), true))
		return
	}
	d.held.Add(1)
	d.bytes.Add(size)
	d.jobs.Go(func() {
		defer func() {
			d.held.Add(-1)
			d.bytes.Add(-size)
		}()
		e.accept(d.scope, unstored{}, msg.Header, msg.Data)
	})
}

// refuse tells a caller why his request is not taken.
func (d *direct) refuse(to wire.Return, msg *nats.Msg, why *wire.SlotError) {
	e := d.server
	if err := e.Host.NC.PublishMsg(wire.FailureMsg(msg.Header, to, e.Host.Identity, *why)); err != nil {
		e.Log.With(OfHeader(msg.Header)...).Warn("a caller could not be told that his request is not taken",
			zap.String("code", why.Code), zap.Error(err))
	}
}

// HeldDirect returns how many direct requests are at work or wait their turn.
func (e *Server) HeldDirect() int {
	if d := e.direct.Load(); d != nil {
		return int(d.held.Load())
	}
	return 0
}

// unstored is the origin of a request that no one will send again.
type unstored struct{}

func (unstored) Acknowledge()           {}
func (unstored) Nak(time.Duration) bool { return false }
func (unstored) Terminate(error)        {}
func (unstored) Delivered() int         { return 1 }
func (unstored) Expires() time.Time     { return time.Time{} }
func (unstored) LetterID() string       { return "" }
func (unstored) Persisted() bool        { return false }
