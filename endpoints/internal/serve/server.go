// Package serve serves one endpoint, from the delivery of a request by a stream or core NATS to its acknowledgement:
//
//	puller, bind, room   fetch messages from a durable consumer, as capacity allows
//	slots, suspects      schedule chunks and calls, and isolate suspects
//	server, work, single handle one request; direct handles those of core NATS
//	writer, held         write answers into as few messages as fit
//	outbox               publishes until JetStream acknowledges
//	stats                report
//
// Package endpoints calls the handlers, since it knows their types.
package serve

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Server serves one endpoint.
type Server struct {
	Name     string
	Settings Settings
	Contract wire.Contract
	ByItem   bool
	Begin    func(*Job) Work
	Around   Around // nil without wrappers
	Stages   int    // of a flow, else 0

	Host    *Host
	Log     *zap.Logger
	Slots   *Slots
	Setting *Concurrency
	Stats   stats
	Work    *Puller   // of chunks
	Calls   *Puller   // of calls
	More    []*Puller // of a flow's replies
	direct  atomic.Pointer[direct]
}

// Settings configures an endpoint.
type Settings struct {
	Concurrency int
	Reserve     int // negative: by the size
	Timeout     time.Duration
	FlushBytes  int
	Compress    int
	Revision    string
}

// Host is shared by the endpoints of one service.
type Host struct {
	NC       *nats.Conn
	Outbox   *Outbox
	Limits   wire.Limits
	Identity string // "name@version instance"
	Suspects *Suspects
	Log      *zap.Logger
}

// Attach initializes the server within its service.
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

// Run serves until ctx ends and all held messages are handled.
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

// Held returns the number of messages queued or being handled.
func (e *Server) Held() int {
	held := e.Work.Room.Len() + e.Calls.Room.Len() + e.HeldDirect()
	for _, p := range e.More {
		held += p.Room.Len()
	}
	return held
}

// Prepare initializes the reply to a request.
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

// Fields returns the log fields of a chunk: run, slice, and for a flow's question the node's slice and the stack.
func Fields(m wire.Meta) []zap.Field {
	fields := []zap.Field{zap.Stringer("run", m.Run), zap.Stringer("slice", m.Slice)}
	if m.Root != m.Slice {
		fields = append(fields, zap.Stringer("root", m.Root))
	}
	if m.Stack != "" {
		fields = append(fields, zap.String("stack", string(m.Stack)))
	}
	return fields
}

// maxLogged bounds the bytes logged of an unchecked header.
const maxLogged = 256

// OfHeader is Fields for unparsed headers.
func OfHeader(h nats.Header) []zap.Field {
	var fields []zap.Field
	for _, f := range []struct{ name, header string }{
		{"run", wire.HeaderRun}, {"slice", wire.HeaderSlice}, {"root", wire.HeaderRoot}, {"stack", wire.HeaderStack},
	} {
		if value := h.Get(f.header); value != "" {
			fields = append(fields, zap.String(f.name, wire.OneLine(wire.Cut(value, maxLogged))))
		}
	}
	return fields
}

// Remedies for a server that refuses this user or is unreachable.
const (
	RefusedRemedy = "for the private server of `tranche serve`, set NATS_URL=$(cat DIR/nats-url), where DIR is its " +
		"--data-dir; for another one, check NATS_URL and NATS_CREDS, NATS_NKEY or NATS_USER"
	AwayRemedy = "start `tranche serve`, or set NATS_URL to a server that runs; for the private server of " +
		"`tranche serve`, NATS_URL=$(cat DIR/nats-url), where DIR is its --data-dir"
)

// Speaker returns the default logger: one line per event on standard error.
func Speaker() *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339TimeEncoder
	config.EncodeLevel = zapcore.CapitalLevelEncoder
	config.ConsoleSeparator = " "
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.Lock(os.Stderr), zapcore.InfoLevel))
}
