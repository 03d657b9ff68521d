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
	name     string
	settings settings
	byItem   bool
	begin    func(*job) work
	around   around // nil: nothing is called around handlers
	stages   int    // of a flow; otherwise 0

	host    *host
	log     *zap.Logger
	slots   *slots
	setting *setting
	stats   stats
	work    *puller   // of requests
	calls   *puller   // of those for which somebody waits
	more    []*puller // what a flow fetches beside those
	direct  atomic.Pointer[direct]
}

// settings is how one endpoint is served.
type settings struct {
	concurrency int
	reserve     int // negative: usualReserve
	timeout     time.Duration
	flushBytes  int
	compress    int
	revision    string
}

// host is what the endpoints of one service share: for whom they speak, and through what.
type host struct {
	nc       *nats.Conn
	outbox   *outbox
	limits   wire.Limits
	identity string // "name@version instance"
	suspects *suspects
	log      *zap.Logger
}

// attach sets up what needs a service.
func (e *endpointServer) attach(h *host) {
	e.host = h
	e.log = h.log.With(zap.String("endpoint", e.name))
	e.slots = newSlots(e.settings.concurrency, e.settings.reserve)
	e.setting = &setting{slots: e.slots, option: e.settings.concurrency, log: e.log}
	e.work = newPuller(h.outbox, wire.StreamWork, e.name, newRoom(e.slots, e.byItem), e.log)
	e.work.deal = e.dealer(e.work)
	e.work.settings = e.setting.setOperator
	e.work.ensure = func(ctx context.Context) error {
		return stream.EnsureConsumer(ctx, h.outbox.js, e.name, stream.ConsumerSettings{})
	}
	e.calls = newPuller(h.outbox, wire.StreamWork, wire.LaneOf(e.name), newRoom(e.slots, false),
		e.log.With(zap.Bool("calls", true)))
	e.calls.deal, e.calls.aside = e.dealer(e.calls), true
	e.calls.ensure = func(ctx context.Context) error { return stream.EnsureLane(ctx, h.outbox.js, e.name) }
}

// run serves until ctx ends and every message held has been dealt with.
func (e *endpointServer) run(ctx context.Context, scope scope) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range e.more {
		group.Go(func() error { return p.run(ctx, scope) })
	}
	group.Go(func() error { return e.runDirect(ctx, scope) })
	group.Go(func() error { return e.work.run(ctx, scope) })
	group.Go(func() error { return e.calls.run(ctx, scope) })
	return group.Wait()
}

// held returns how many messages are at work or wait their turn.
func (e *endpointServer) held() int {
	held := e.work.room.len() + e.calls.room.len() + e.heldDirect()
	for _, p := range e.more {
		held += p.room.len()
	}
	return held
}

// prepare sets up the reply to a request.
func (e *endpointServer) prepare(sending context.Context, a *answers, meta wire.Meta, trace wire.Trace) {
	a.out, a.ctx = e.host.outbox, sending
	a.giveUp = func(error) {}
	a.subject = wire.ReplySubject(e.name)
	if !meta.ReplyTo.IsZero() {
		a.subject = meta.ReplyTo.String()
	}
	a.header = meta.Reply()
	a.header[wire.HeaderService] = []string{e.host.identity}
	a.header[wire.HeaderContentType] = []string{wire.ContentTypeJSON}
	trace.SetHeader(a.header)
	a.limit = min(int(e.host.nc.MaxPayload())-wire.HeaderSize(a.header)-replyReserve, wire.DefaultMaxBody)
	a.flushAt = e.settings.flushBytes
	a.squeeze = e.settings.compress
}
