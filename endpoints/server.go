package endpoints

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// endpointServer serves one endpoint: it has requests fetched and handles each.
type endpointServer struct {
	Name     string
	Settings settings
	ByItem   bool
	Begin    func(*job) work
	Around   around // nil: nothing is called around handlers
	Stages   int    // of a flow; otherwise 0

	Host    *host
	Log     *zap.Logger
	Slots   *slots
	Setting *setting
	Stats   stats
	Work    *puller   // of requests
	Calls   *puller   // of those for which somebody waits
	More    []*puller // what a flow fetches beside those
	direct  atomic.Pointer[direct]
}

// settings is how one endpoint is served.
type settings struct {
	Concurrency int
	Reserve     int // negative: usualReserve
	Timeout     time.Duration
	FlushBytes  int
	Compress    int
	Revision    string
}

// host is what the endpoints of one service share: for whom they speak, and through what.
type host struct {
	NC       *nats.Conn
	Outbox   *outbox
	Limits   wire.Limits
	Identity string // "name@version instance"
	Suspects *suspects
	Log      *zap.Logger
}

// Attach sets up what needs a service.
func (e *endpointServer) Attach(h *host) {
	e.Host = h
	e.Log = h.Log.With(zap.String("endpoint", e.Name))
	e.Slots = newSlots(e.Settings.Concurrency, e.Settings.Reserve)
	e.Setting = &setting{Slots: e.Slots, Option: e.Settings.Concurrency, Log: e.Log}
	e.Work = newPuller(h.Outbox, wire.StreamWork, e.Name, newRoom(e.Slots, e.ByItem), e.Log)
	e.Work.Deal = e.dealer(e.Work)
	e.Work.Settings = e.Setting.SetOperator
	e.Work.Ensure = func(ctx context.Context) error {
		return stream.EnsureConsumer(ctx, h.Outbox.JS, e.Name, stream.ConsumerSettings{})
	}
	e.Calls = newPuller(h.Outbox, wire.StreamWork, wire.LaneOf(e.Name), newRoom(e.Slots, false),
		e.Log.With(zap.Bool("calls", true)))
	e.Calls.Deal, e.Calls.Aside = e.dealer(e.Calls), true
	e.Calls.Ensure = func(ctx context.Context) error { return stream.EnsureLane(ctx, h.Outbox.JS, e.Name) }
}

// Run serves until ctx ends and every message held has been dealt with.
func (e *endpointServer) Run(ctx context.Context, scope scope) error {
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
func (e *endpointServer) Held() int {
	held := e.Work.Room.Len() + e.Calls.Room.Len() + e.HeldDirect()
	for _, p := range e.More {
		held += p.Room.Len()
	}
	return held
}

// Prepare sets up the reply to a request.
func (e *endpointServer) Prepare(sending context.Context, a *answers, meta wire.Meta, trace wire.Trace) {
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
	a.Limit = min(int(e.Host.NC.MaxPayload())-wire.HeaderSize(a.Header)-replyReserve, wire.DefaultMaxBody)
	a.FlushAt = e.Settings.FlushBytes
	a.Squeeze = e.Settings.Compress
}
