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
	// lookEvery is the longest interval of consumer lookups, for heartbeats, settings and the watchdog.
	lookEvery = 5 * time.Second // a third of stream.AckWait
	// failuresToRest is how many consecutive pulls fail before a pause, failuresToTell before a log entry.
	failuresToRest = 2
	failuresToTell = 10
)

var errReconnected = errors.New("the connection was lost")

// Scope is the life of one Run. Stopping ends first, then Working, then Sending.
type Scope struct {
	Stopping <-chan struct{}
	Working  context.Context //nolint:containedctx // of handlers; passed down, never kept
	Sending  context.Context //nolint:containedctx // of replies; passed down, never kept
}

// Puller fetches messages from one durable consumer, within its Room, and handles each in a goroutine. An endpoint
// has one for requests and one for calls; a flow has another for replies to its questions.
type Puller struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	stream   string
	endpoint string
	// Ensure creates the consumer if it is missing.
	Ensure func(context.Context) error
	// Deal handles one held message through its acknowledgement. It returns how many items a handler saw, and for how
	// long.
	Deal func(Scope, RequestID, jetstream.Msg) (items int, took time.Duration)

	log      *zap.Logger
	Aside    bool // another puller of the endpoint logs what this one would
	Room     *Room
	Consumer stream.Incarnation
	beat     *time.Ticker // at a third of the consumer's AckWait
	bound    bool         // has bound before
	binding  backoff.Timeout
	Life     life
	Watchdog *watchdog
	// Heartbeat is the interval of the server's heartbeats on an open pull.
	Heartbeat time.Duration
	// Settings, if not nil, receives the operators' settings at each consumer lookup.
	Settings func(stream.ConsumerSettings)
	failures int // consecutive pulls that failed without a message
}

// NewPuller returns a puller for the endpoint's consumer of a stream.
func NewPuller(out *Outbox, stream, endpoint string, room *Room, log *zap.Logger) *Puller {
	p := &Puller{nc: out.NC, js: out.JS, stream: stream, endpoint: endpoint, log: log, Room: room,
		Watchdog: newWatchdog(), Heartbeat: pull.Heartbeat,
		binding: backoff.Timeout{First: bindTimeout, Longest: longestBindTimeout}}
	p.Consumer.Ask = p.consumerMade
	p.Life.set(wire.StateWaiting, "not started")
	return p
}

// Run fetches until ctx ends and all held messages are handled.
func (p *Puller) Run(ctx context.Context, scope Scope) error {
	p.beat = time.NewTicker(lookEvery) // until bind sets it
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

// Pulls returns a pull.Puller whose messages are handled in goroutines of jobs.
func (p *Puller) Pulls(scope Scope, jobs *sync.WaitGroup) *pull.Puller {
	return pull.New(pull.Config{
		JS: p.js, Stream: p.stream, Consumer: wire.ConsumerName(p.endpoint), Heartbeat: p.Heartbeat, Late: p.Room.owe,
		Take: func(msg jetstream.Msg, made time.Time) { p.take(scope, jobs, msg, made) },
	})
}

// fetchAll binds and fetches, rebinding on errors. It returns nil when ctx ends.
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

// rest pauses after consecutive failed pulls: an immediate retry would add load.
func (p *Puller) rest(ctx context.Context, err error) {
	p.failures++
	if p.failures < failuresToRest {
		return
	}
	p.Life.set(wire.StateWaiting, fmt.Sprintf("the server ends every pull of consumer %s: %v",
		wire.ConsumerName(p.endpoint), err))
	if p.failures == failuresToTell {
		p.log.Warn("the server ends every pull; if this continues, check the consumer's limits", zap.Error(err))
	}
	_ = backoff.Sleep(ctx, backoff.Nth(firstBind, longestBind, p.failures-failuresToRest+1))
}

func (p *Puller) recovered() {
	if p.failures > 0 {
		p.failures = 0
		p.Life.set(wire.StateListening, "")
	}
}

// Fetch opens a pull for as many messages as the Room wants and returns when it ends, with an error unless it expired
// or was fulfilled.
func (p *Puller) Fetch(ctx context.Context, pulls *pull.Puller, reconnected <-chan nats.Status) error {
	n, bytes, err := p.Room.wait(ctx)
	if err != nil {
		return nil // ctx ended; the caller checks it
	}
	// Read before the pull: messages of a consumer created later then do not count as its own, which costs a redelivery.
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
	well := time.NewTimer(3 * p.Heartbeat) // a dead pull ends before that
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

// take handles a message of a pull opened when the consumer's creation time was made.
func (p *Puller) take(scope Scope, jobs *sync.WaitGroup, msg jetstream.Msg, made time.Time) {
	p.Watchdog.came.Add(1)
	// Held here, not in the job, so that the next fetch counts it.
	if id, isNew := p.hold(Delivery{msg, made, sizeOf(msg)}); isNew {
		jobs.Go(func() {
			items, took := 0, time.Duration(0)
			defer func() { p.Room.drop(id, items, took) }()
			items, took = p.Deal(scope, id, msg)
		})
	}
}

// tick sends heartbeats for held messages before AckWait expires, and refreshes the consumer's state.
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

func (p *Puller) see(info *jetstream.ConsumerInfo) {
	if p.Settings != nil {
		p.Settings(stream.SettingsOf(info))
	}
	p.Watchdog.look(time.Now(), info)
}

func (p *Puller) sendSigns(made time.Time) {
	for _, d := range p.Room.Deliveries() {
		if !d.Made.Equal(made) {
			continue // it would delay another request's redelivery
		}
		if err := d.msg.InProgress(); err != nil {
			p.log.With(OfHeader(d.msg.Headers())...).Debug("a heartbeat could not be sent", zap.Error(err))
		}
	}
}

// hold records a delivered message. It returns false for a redelivery of a message being handled: one acknowledgement
// settles both.
func (p *Puller) hold(d Delivery) (id RequestID, isNew bool) {
	meta, err := d.msg.Metadata()
	if err != nil { // not a JetStream message: nothing to acknowledge
		p.log.Error("a message without JetStream metadata is dropped", zap.Error(err))
		return id, false
	}
	id = RequestID{meta.Sequence.Stream, meta.Timestamp.UnixNano()}
	return id, p.Room.hold(id, d)
}

var errNoConsumer = errors.New("the consumer does not exist or does not answer")
