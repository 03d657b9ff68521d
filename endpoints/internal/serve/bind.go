package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// bindTimeout and longestBindTimeout bound one attempt to bind, by the server's silence. Longest is the time of three
	// queries that each take stream.AckTimeout: no service can work with a slower server.
	bindTimeout        = 500 * time.Millisecond
	longestBindTimeout = 6 * time.Second
	// firstBind and longestBind bound the pauses between attempts.
	firstBind   = 25 * time.Millisecond
	longestBind = 400 * time.Millisecond
	// shortestBeat bounds the heartbeats of a consumer with a tiny AckWait, or none.
	shortestBeat = 10 * time.Millisecond
	// repeatLog is the interval for logging an unchanged wait, doubled up to longestRepeatLog.
	repeatLog        = 30 * time.Second
	longestRepeatLog = 10 * time.Minute
)

// bind waits until the server, the stream and the endpoint's consumer exist, and creates the consumer if permitted.
// It returns ctx's error, or one if the connection is closed permanently.
func (p *Puller) bind(ctx context.Context) error {
	told := map[string]*backoff.Seldom{} // by reason
	pauses := backoff.Exponential{First: firstBind, Longest: longestBind}
	for ctx.Err() == nil {
		asked := time.Now()
		consumer, err := p.tryBind(ctx)
		if err == nil {
			p.Consumer.Learn(asked, consumer.CachedInfo().Created)
			p.beat.Reset(min(max(consumer.CachedInfo().Config.AckWait/3, shortestBeat), lookEvery))
			p.see(consumer.CachedInfo())
			if !p.bound || len(told) > 0 { // repeated binding is not news
				p.say(zap.InfoLevel, "listening")
			}
			if p.bound {
				p.Life.Rebinds.Add(1)
			}
			p.bound = true
			if p.failures < failuresToRest {
				p.Life.set(wire.StateListening, "")
			}
			return nil
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("serve endpoint %s: %w", p.endpoint, err)
		}
		if ctx.Err() == nil {
			reason := p.explain(err)
			p.Life.set(wire.StateWaiting, reason)
			if told[reason] == nil {
				told[reason] = &backoff.Seldom{First: repeatLog, Longest: longestRepeatLog}
			}
			if told[reason].Now() {
				level := zap.WarnLevel
				if unmade(err) {
					level = zap.InfoLevel // may be intended
				}
				p.say(level, reason, zap.Error(err))
			}
		}
		if p.Aside && stream.Denied(err) { // the operator may have intended it
			_ = backoff.Sleep(ctx, lookEvery)
		}
		if pauses.Wait(ctx) != nil {
			break
		}
	}
	return ctx.Err()
}

// say logs, at debug level if another puller of the endpoint logs the same.
func (p *Puller) say(level zapcore.Level, what string, fields ...zap.Field) {
	if p.Aside {
		level = zap.DebugLevel
	}
	p.log.Log(level, what, fields...)
}

// tryBind looks up the consumer and creates it only if missing, so that a service needs no permission to.
func (p *Puller) tryBind(ctx context.Context) (jetstream.Consumer, error) {
	ctx, end := p.binding.Context(ctx)
	defer end()
	consumer, err := p.look(ctx)
	if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return consumer, err
	}
	if err := stream.During(ctx, p.nc, p.Ensure, wire.ConsumerAPI("CREATE", p.stream, p.endpoint)+".>"); err != nil {
		return nil, err
	}
	return p.look(ctx)
}

func (p *Puller) look(ctx context.Context) (consumer jetstream.Consumer, err error) {
	err = stream.During(ctx, p.nc, func(ctx context.Context) error {
		if consumer, err = p.js.Consumer(ctx, p.stream, wire.ConsumerName(p.endpoint)); err != nil {
			return err
		}
		return stream.Leads(consumer.CachedInfo().Cluster)
	}, wire.ConsumerAPI("INFO", p.stream, p.endpoint))
	return consumer, err
}

// unmade reports whether the consumer is missing and this user may not create it.
func unmade(err error) bool {
	return stream.Denied(err) && strings.Contains(err.Error(), stream.MakeConsumer)
}

func (p *Puller) explain(err error) string {
	nc := p.nc
	switch {
	case unmade(err):
		return fmt.Sprintf("waiting for a node to make consumer %s of stream %s, which this user may not",
			wire.ConsumerName(p.endpoint), p.stream)
	case stream.Denied(err):
		return fmt.Sprintf("cannot listen yet: %v", err)
	case !nc.IsConnected():
		servers := nc.Servers()
		slices.Sort(servers) // they take turns at being the first
		if err := nc.LastError(); stream.LoginRefused(err) {
			return fmt.Sprintf("the NATS server at %s refuses this user (%v): %s",
				strings.Join(servers, ", "), err, RefusedRemedy)
		}
		return fmt.Sprintf("waiting for a NATS server at %s: %s", strings.Join(servers, ", "), AwayRemedy)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Sprintf("waiting for a Tranche node to create stream %s", p.stream)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return "waiting for JetStream, which the NATS server does not offer: start it with -js"
	default:
		return fmt.Sprintf("cannot reach consumer %s of stream %s yet; if this continues, check the NATS permissions",
			wire.ConsumerName(p.endpoint), p.stream)
	}
}

type life struct {
	Rebinds atomic.Int64

	mu     sync.Mutex
	now    wire.State
	reason string
}

func (l *life) set(state wire.State, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != wire.StateDraining { // which is final
		l.now, l.reason = state, reason
	}
}

func (l *life) State() (wire.State, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.reason
}

func (p *Puller) consumerMade(ctx context.Context) (time.Time, error) {
	consumer, err := p.js.Consumer(ctx, p.stream, wire.ConsumerName(p.endpoint))
	if err != nil {
		return time.Time{}, err
	}
	p.see(consumer.CachedInfo())
	if err := stream.Leads(consumer.CachedInfo().Cluster); err != nil { // the creation time is valid anyway
		stream.PermissionsOf(p.nc).Elsewhere.Note(p.nc, nil, err)
	}
	return consumer.CachedInfo().Created, nil
}

// respond acknowledges a request in one of the ways, unless the consumer that delivered it is gone. If sending fails,
// the request is redelivered, which is harmless.
func (p *Puller) respond(id RequestID, what string, how func(jetstream.Msg) error) {
	made := p.Consumer.Current()
	d := p.Room.delivery(id)
	if !d.Made.Equal(made) {
		p.logAbout(id, d).Warn("could not " + what + " a request: the consumer that delivered it was recreated or does " +
			"not answer; the request may be delivered again")
		return
	}
	if err := how(d.msg); err != nil {
		p.logAbout(id, d).Warn("could not "+what+" a request; it will be delivered again", zap.Error(err))
	}
}

func (p *Puller) logAbout(id RequestID, d Delivery) *zap.Logger {
	log := p.log.With(zap.Uint64("sequence", id.Sequence))
	if d.msg != nil { // it has not been let go of
		log = log.With(OfHeader(d.msg.Headers())...)
	}
	return log
}

// stallTimeout is how long messages may wait at the server while an open pull receives none.
const stallTimeout = 5 * time.Second

var errStalled = errors.New("messages wait at the server, and none is sent to an open pull")

// watchdog detects a pull that the server, or something in between, has forgotten: it is open and messages wait, but
// none arrives. Heartbeats may continue in that state. The watchdog needs two reports on the consumer, at least
// Timeout apart.
//
// It is safe for concurrent use.
type watchdog struct {
	Timeout time.Duration
	stalled chan struct{} // receives a value when the open pull must end
	came    atomic.Int64  // total messages

	Mu    sync.Mutex
	Open  bool
	since time.Time // when messages first waited with none arriving; zero if they do not
	count int64     // came, at since
}

func newWatchdog() *watchdog {
	return &watchdog{Timeout: stallTimeout, stalled: make(chan struct{}, 1)}
}

// opened records that a pull is open until closed is called.
func (w *watchdog) opened() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Open, w.since = true, time.Time{}
	select {
	case <-w.stalled: // left from the previous pull
	default:
	}
}

func (w *watchdog) closed() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Open = false
}

// look evaluates the server's report on the consumer.
func (w *watchdog) look(now time.Time, info *jetstream.ConsumerInfo) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	count := w.came.Load()
	switch {
	case !w.Open || !deliverable(info):
		w.since = time.Time{}
	case w.since.IsZero() || count != w.count:
		w.since, w.count = now, count
	case now.Sub(w.since) >= w.Timeout:
		w.since = time.Time{}
		select {
		case w.stalled <- struct{}{}:
		default:
		}
	}
}

// deliverable reports whether the server should be sending messages.
func deliverable(info *jetstream.ConsumerInfo) bool {
	full := info.Config.MaxAckPending > 0 && info.NumAckPending >= info.Config.MaxAckPending
	return info.NumPending > 0 && !info.Paused && !full
}
