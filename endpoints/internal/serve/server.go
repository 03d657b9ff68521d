// Package serve serves one endpoint, from the delivery of a request by a stream or core NATS to its acknowledgement:
//
//	puller, bind, room   take messages from one durable consumer, as many as there is room for
//	slots, suspects      decide which chunk or call is handled next, and what must run alone
//	server, work, single take one request all the way; direct takes those of core NATS
//	writer, held         write the answers into as few messages as fit
//	outbox               publishes until JetStream has acknowledged it
//	stats, log           say how it goes
//
// The package above calls the handlers, since it knows their types.
package serve

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Server serves one endpoint: it has requests fetched and handles each.
type Server struct {
	Name     string
	Settings Settings
	Contract wire.Contract
	ByItem   bool
	Begin    func(*Job) Work
	Around   Around // nil: nothing is called around handlers
	Stages   int    // of a flow; otherwise 0

	Host    *Host
	Log     *zap.Logger
	Slots   *Slots
	Setting *Concurrency
	Stats   stats
	Work    *Puller   // of requests
	Calls   *Puller   // of those for which someone waits
	More    []*Puller // what a flow fetches beside those
	direct  atomic.Pointer[direct]
}

// Settings is how one endpoint is served.
type Settings struct {
	Concurrency int
	Reserve     int // negative: usualReserve
	Timeout     time.Duration
	FlushBytes  int
	Compress    int
	Revision    string
}

// Host is what the endpoints of one service share: for whom they speak, and through what.
type Host struct {
	NC       *nats.Conn
	Outbox   *Outbox
	Limits   wire.Limits
	Identity string // "name@version instance"
	Suspects *Suspects
	Log      *zap.Logger
}

// Attach sets up what needs a service.
func (e *Server) Attach(h *Host) {
	e.Host = h
	e.Log = h.Log.With(zap.String("endpoint", e.Name))
	e.Slots = NewSlots(e.Settings.Concurrency, e.Settings.Reserve)
	e.Setting = &Concurrency{Slots: e.Slots, Option: e.Settings.Concurrency, Log: e.Log}
	e.Work = NewPuller(h.Outbox, wire.StreamWork, e.Name, NewRoom(e.Slots, e.ByItem), e.Log)
	e.Work.Deal = e.dealer(e.Work)
	e.Work.Settings = e.Setting.SetOperator
	e.Work.Ensure = func(ctx context.Context) error {
		return stream.EnsureConsumer(ctx, h.Outbox.JS, e.Name, stream.ConsumerSettings{})
	}
	e.Calls = NewPuller(h.Outbox, wire.StreamWork, wire.LaneOf(e.Name), NewRoom(e.Slots, false),
		e.Log.With(zap.Bool("calls", true)))
	e.Calls.Deal, e.Calls.Aside = e.dealer(e.Calls), true
	e.Calls.Ensure = func(ctx context.Context) error { return stream.EnsureLane(ctx, h.Outbox.JS, e.Name) }
}

// Run serves until ctx ends and every message held has been handled.
func (e *Server) Run(ctx context.Context, scope Scope) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range e.More {
		group.Go(func() error { return p.Run(ctx, scope) })
	}
	group.Go(func() error { return e.runDirect(ctx, scope) })
	group.Go(func() error { return e.Work.Run(ctx, scope) })
	group.Go(func() error { return e.Calls.Run(ctx, scope) })
	return group.Wait()
}

// Held returns how many messages are at work or wait their turn.
func (e *Server) Held() int {
	held := e.Work.Room.Len() + e.Calls.Room.Len() + e.HeldDirect()
	for _, p := range e.More {
		held += p.Room.Len()
	}
	return held
}

// Prepare sets up the reply to a request.
func (e *Server) Prepare(sending context.Context, a *Writer, meta wire.Meta, trace wire.Trace) {
	a.Out, a.Ctx = e.Host.Outbox, sending
	a.GiveUp = func(error) {}
	a.Subject = wire.ReplySubject(e.Name)
	if !meta.ReplyTo.IsZero() {
		a.Subject = meta.ReplyTo.String()
	}
	a.Header = meta.Reply()
	a.Header[wire.HeaderService] = []string{e.Host.Identity}
	a.Header[wire.HeaderContentType] = []string{wire.ContentTypeJSON}
	trace.SetHeader(a.Header)
	a.Limit = min(int(e.Host.NC.MaxPayload())-wire.HeaderSize(a.Header)-ReplyReserve, wire.DefaultMaxBody)
	a.FlushAt = e.Settings.FlushBytes
	a.Squeeze = e.Settings.Compress
}
