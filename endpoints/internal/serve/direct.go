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
	// directShare is the number of direct requests held per slot; LeastDirect is the minimum in all.
	directShare = 4
	// LeastDirect is the minimum number of direct requests held.
	LeastDirect = 16
	// directBytes bounds the bytes of direct requests held.
	directBytes = 16 << 20
	// directBacklog bounds the messages that nats.go buffers before take, which is fast.
	directBacklog = 4096
	// directDrain is how long a stopping endpoint waits for messages that the server has already sent.
	directDrain = 2 * time.Second
)

// direct takes requests over core NATS. They are not persisted, so one that cannot be taken is refused immediately.
type direct struct {
	server *Server
	scope  Scope
	held   atomic.Int64
	bytes  atomic.Int64

	mu      sync.Mutex
	stopped bool // new ones are refused
	jobs    sync.WaitGroup
}

// runDirect takes direct requests until ctx ends and all taken ones are answered.
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

// drain unsubscribes. Requests sent before that are taken and refused.
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
	case <-timer.C: // the connection is lost, and the messages with it
		_ = sub.Unsubscribe()
	}
}

// take handles messages one at a time.
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

func (d *direct) refuse(to wire.Return, msg *nats.Msg, why *wire.SlotError) {
	e := d.server
	if err := e.Host.NC.PublishMsg(wire.FailureMsg(msg.Header, to, e.Host.Identity, *why)); err != nil {
		e.Log.With(OfHeader(msg.Header)...).Warn("a caller was not notified that its request is refused",
			zap.String("code", why.Code), zap.Error(err))
	}
}

// HeldDirect returns the number of direct requests queued or being handled.
func (e *Server) HeldDirect() int {
	if d := e.direct.Load(); d != nil {
		return int(d.held.Load())
	}
	return 0
}

// unstored is the origin of a request that is not redelivered.
type unstored struct{}

func (unstored) Acknowledge()           {}
func (unstored) Nak(time.Duration) bool { return false }
func (unstored) Terminate(error)        {}
func (unstored) Delivered() int         { return 1 }
func (unstored) Expires() time.Time     { return time.Time{} }
func (unstored) LetterID() string       { return "" }
func (unstored) Persisted() bool        { return false }
