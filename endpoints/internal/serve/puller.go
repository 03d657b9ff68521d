package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
)

const (
	// lookEvery is how often the consumer is asked for at the least: for heartbeats, settings and the watchdog.
	lookEvery = 5 * time.Second // a third of stream.AckWait
	// failuresToRest is how many pulls fail in a row before there is a pause, failuresToTell before the log says so.
	failuresToRest = 2
	failuresToTell = 10
)

// errReconnected ends a pull that was lost with the connection.
var errReconnected = errors.New("the connection was lost")

// Scope is the span of one Run. stopping ends first, then working, then sending.
type Scope struct {
	Stopping <-chan struct{}
	Working  context.Context //nolint:containedctx // of handlers; passed down, never kept
	Sending  context.Context //nolint:containedctx // of replies; also
}

// Puller fetches messages from one durable consumer, within its room, and has each handled in a goroutine. An
// endpoint has one for its requests; a flow has another for the replies to what it has asked.
type Puller struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	stream   string
	endpoint string
	// Ensure makes the consumer where there is none.
	Ensure func(context.Context) error
	// Deal takes one message that is held all the way to its acknowledgement, and returns how many items a handler saw,
	// and for how long.
	Deal func(Scope, RequestID, jetstream.Msg) (items int, took time.Duration)

	log      *zap.Logger
	Aside    bool // another puller of the endpoint says what this one waits for, too
	Room     *Room
	Consumer stream.Incarnation
	beat     *time.Ticker // at a third of the consumer's AckWait
	bound    bool         // has been, once
	Life     life
	Watchdog *watchdog
	// Heartbeat is how often the server says that a pull is open.
	Heartbeat time.Duration
	// Settings is told what operators have set, whenever the consumer was asked for. It may be nil.
	Settings func(stream.ConsumerSettings)
	failures int // pulls that failed in a row, without a message
}

// NewPuller returns a puller of the endpoint's consumer on a stream.
func NewPuller(out *Outbox, stream, endpoint string, room *Room, log *zap.Logger) *Puller {
	p := &Puller{nc: out.NC, js: out.JS, stream: stream, endpoint: endpoint, log: log, Room: room,
		Watchdog: newWatchdog(), Heartbeat: pull.Heartbeat}
	p.Consumer.Ask = p.consumerMade
	p.Life.set(wire.StateWaiting, "not started")
	return p
}

// Run fetches until ctx ends and every message held has been handled.
func (p *Puller) Run(ctx context.Context, scope Scope) error {
	p.beat = time.NewTicker(lookEvery) // until bind knows better
	defer p.beat.Stop()
	ended := make(chan struct{})
	var ticker, jobs sync.WaitGroup
	ticker.Go(func() { p.tick(ended) })
	pulls := p.Pulls(scope, &jobs)
	err := p.fetchAll(ctx, pulls)
	pulls.Close()
	jobs.Wait()
	close(ended)
	ticker.Wait()
	return err
}

// Pulls returns what pulls messages and has each handled as it comes, in a goroutine of jobs.
func (p *Puller) Pulls(scope Scope, jobs *sync.WaitGroup) *pull.Puller {
	return pull.New(pull.Config{
		JS: p.js, Stream: p.stream, Consumer: wire.ConsumerName(p.endpoint), Heartbeat: p.Heartbeat, Late: p.Room.owe,
		Take: func(msg jetstream.Msg, made time.Time) { p.take(scope, jobs, msg, made) },
	})
}

// fetchAll binds to the consumer, fetches, and binds again whenever fetching fails. It returns nil when ctx ends.
func (p *Puller) fetchAll(ctx context.Context, pulls *pull.Puller) error {
	reconnected := p.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer p.nc.RemoveStatusListener(reconnected)
	draining := context.AfterFunc(ctx, func() { p.Life.set(wire.StateDraining, "") })
	defer draining()
	for {
		err := p.bind(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		next := pull.Subject(p.js, p.stream, wire.ConsumerName(p.endpoint))
		for err == nil && ctx.Err() == nil {
			err = stream.During(ctx, p.nc, func(ctx context.Context) error {
				return p.Fetch(ctx, pulls, reconnected)
			}, next)
		}
		if stream.Denied(err) {
			p.Life.set(wire.StateWaiting, err.Error())
			_ = backoff.Sleep(ctx, DeniedTimeout)
		}
		if ctx.Err() == nil {
			p.log.Debug("fetching ended; binding again", zap.Error(err))
			p.rest(ctx, err)
		}
	}
}

// rest waits between pulls that fail one at a time: asking at once would only add to whatever is wrong.
func (p *Puller) rest(ctx context.Context, err error) {
	p.failures++
	if p.failures < failuresToRest {
		return
	}
	p.Life.set(wire.StateWaiting, fmt.Sprintf("the server ends every pull of consumer %s: %v",
		wire.ConsumerName(p.endpoint), err))
	if p.failures == failuresToTell {
		p.log.Warn("the server ends every pull; if this goes on, look at the consumer's limits", zap.Error(err))
	}
	_ = backoff.Sleep(ctx, backoff.Nth(firstBind, longestBind, p.failures-failuresToRest+1))
}

// recovered notes that a pull has brought something, or lives.
func (p *Puller) recovered() {
	if p.failures > 0 {
		p.failures = 0
		p.Life.set(wire.StateListening, "")
	}
}

// Fetch asks for as many messages as there is room for. It returns when the server has ended the pull, and with an
// error when it did so for any reason but time or size.
func (p *Puller) Fetch(ctx context.Context, pulls *pull.Puller, reconnected <-chan nats.Status) error {
	n, bytes, err := p.Room.wait(ctx)
	if err != nil {
		return nil // ctx has ended; the caller sees it
	}
	// Before the pull: what a consumer made after this delivers is then not taken for its own, which costs a delivery.
	made := p.Consumer.Current()
	if made.IsZero() {
		return errNoConsumer
	}
	before := p.Watchdog.came.Load()
	open, err := pulls.Open(made, n, bytes)
	if err != nil {
		return err
	}
	defer open.Abandon()
	p.Watchdog.opened()
	defer p.Watchdog.closed()
	settled, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	forget := context.AfterFunc(ctx, func() {
		open.Settle()
		end()
	})
	defer forget()
	well := time.NewTimer(3 * p.Heartbeat) // a dead one has ended by then
	defer well.Stop()
	for {
		select {
		case <-open.Over():
			if p.Watchdog.came.Load() > before {
				p.recovered()
			}
			return open.Err()
		case <-settled.Done():
			return ctx.Err()
		case <-reconnected:
			return errReconnected
		case <-well.C:
			p.recovered()
		case <-p.Watchdog.stalled:
			p.log.Warn("messages wait at the server, and none is sent to an open pull; binding again")
			return errStalled
		}
	}
}

// take takes a message that has come, for a pull that was opened when the consumer was made at made.
func (p *Puller) take(scope Scope, jobs *sync.WaitGroup, msg jetstream.Msg, made time.Time) {
	p.Watchdog.came.Add(1)
	// Held here and not by the job, so that the next fetch counts it.
	if id, isNew := p.hold(Delivery{msg, made, sizeOf(msg)}); isNew {
		jobs.Go(func() { p.handle(scope, id, msg) })
	}
}

// tick tells the server, in time, that what is held is being worked on, and asks it for news of the consumer.
func (p *Puller) tick(ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-p.beat.C:
		}
		if p.nc.IsConnected() {
			p.sendSigns(p.Consumer.Current())
		}
	}
}

// see takes what the server says of the consumer.
func (p *Puller) see(info *jetstream.ConsumerInfo) {
	if p.Settings != nil {
		p.Settings(stream.SettingsOf(info))
	}
	p.Watchdog.look(time.Now(), info)
}

func (p *Puller) sendSigns(made time.Time) {
	for _, d := range p.Room.Deliveries() {
		if !d.Made.Equal(made) {
			continue // it would keep another request from being delivered again
		}
		if err := d.msg.InProgress(); err != nil {
			p.log.With(OfHeader(d.msg.Headers())...).Debug("a heartbeat could not be sent", zap.Error(err))
		}
	}
}

// hold notes a delivered message. It returns false when there is nothing to do: the message was delivered again while
// it is being handled, and one acknowledgement will settle both deliveries.
func (p *Puller) hold(d Delivery) (id RequestID, isNew bool) {
	meta, err := d.msg.Metadata()
	if err != nil { // not a JetStream message; there is nothing to acknowledge
		p.log.Error("a message without JetStream metadata is dropped", zap.Error(err))
		return id, false
	}
	id = RequestID{meta.Sequence.Stream, meta.Timestamp.UnixNano()}
	return id, p.Room.hold(id, d)
}

// handle deals with one message that is held, and lets go of it.
func (p *Puller) handle(scope Scope, id RequestID, msg jetstream.Msg) {
	items, took := 0, time.Duration(0)
	defer func() { p.Room.drop(id, items, took) }()
	items, took = p.Deal(scope, id, msg)
}

// errNoConsumer ends a fetch before it begins.
var errNoConsumer = errors.New("the consumer does not exist or does not answer")
