package endpoints

import (
	"context"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// endpointServer serves one endpoint: it has requests fetched and handles each.
type endpointServer struct {
	name    string
	options options
	byItem  bool
	begin   func(*job) work

	service *Service
	log     *zap.Logger
	slots   *slots
	setting *setting
	stats   stats
	work    *puller // of requests
	calls   *puller // of those for which somebody waits
	flow    *flow   // nil unless the endpoint has stages
	direct  atomic.Pointer[direct]
}

// scope is the span of one Run. stopping ends first, then working, then sending.
type scope struct {
	stopping <-chan struct{}
	working  context.Context //nolint:containedctx // of handlers; passed down, never kept
	sending  context.Context //nolint:containedctx // of replies; likewise
}

// run serves until ctx ends and every message held has been dealt with.
func (e *endpointServer) run(ctx context.Context, scope scope) error {
	group, ctx := errgroup.WithContext(ctx)
	if e.flow != nil {
		group.Go(func() error { return e.flow.replies.run(ctx, scope) })
	}
	group.Go(func() error { return e.runDirect(ctx, scope) })
	group.Go(func() error { return e.work.run(ctx, scope) })
	group.Go(func() error { return e.calls.run(ctx, scope) })
	return group.Wait()
}

// held returns how many messages are at work or wait their turn.
func (e *endpointServer) held() int {
	held := e.work.room.len() + e.calls.room.len() + e.heldDirect()
	if e.flow != nil {
		held += e.flow.replies.room.len()
	}
	return held
}

// prepare sets up the reply to a request.
func (e *endpointServer) prepare(sending context.Context, a *answers, meta wire.Meta, trace wire.Trace) {
	a.out, a.ctx = e.service.outbox, sending
	a.giveUp = func(error) {}
	a.subject = wire.ReplySubject(e.name)
	if !meta.ReplyTo.IsZero() {
		a.subject = meta.ReplyTo.String()
	}
	a.header = meta.Reply()
	a.header[wire.HeaderService] = []string{e.service.identity}
	a.header[wire.HeaderContentType] = []string{wire.ContentTypeJSON}
	trace.SetHeader(a.header)
	a.limit = min(int(e.service.nc.MaxPayload())-wire.HeaderSize(a.header)-replyReserve, wire.DefaultMaxBody)
	a.flushAt = e.options.flushBytes
	a.squeeze = e.options.compress
}
