package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints/internal/logs"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// One try to bind to a consumer, and the pauses between tries.
	bindTimeout = 500 * time.Millisecond
	firstBind   = 25 * time.Millisecond
	longestBind = 400 * time.Millisecond
	// shortestBeat bounds the signs of life of a consumer with a tiny, or no, AckWait.
	shortestBeat = 10 * time.Millisecond
	// A wait that goes on, for the same reason, is mentioned again after so long; each pause is twice the one before.
	repeatLog        = 30 * time.Second
	longestRepeatLog = 10 * time.Minute
)

// bind finds the endpoint's consumer, however long it takes for the server, the stream and the consumer to be there.
// It creates the consumer when it may. Its error is ctx's, or says that the connection is closed for good.
func (p *Puller) bind(ctx context.Context) error {
	told := map[string]*backoff.Seldom{} // by reasons
	pauses := backoff.Doubling{First: firstBind, Longest: longestBind}
	for ctx.Err() == nil {
		asked := time.Now()
		consumer, err := p.tryBind(ctx)
		if err == nil {
			p.Consumer.Learn(asked, consumer.CachedInfo().Created)
			p.beat.Reset(min(max(consumer.CachedInfo().Config.AckWait/3, shortestBeat), lookEvery))
			p.see(consumer.CachedInfo())
			if !p.bound || len(told) > 0 { // binding again and again is not news
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
				p.say(zap.WarnLevel, reason, zap.Error(err))
			}
		}
		if p.Aside && stream.Denied(err) { // whoever gave the permissions may want it so
			_ = backoff.Sleep(ctx, lookEvery)
		}
		if pauses.Wait(ctx) != nil {
			break
		}
	}
	return ctx.Err()
}

// say tells what becomes of the puller, unless another one of the endpoint does.
func (p *Puller) say(level zapcore.Level, what string, fields ...zap.Field) {
	if p.Aside {
		level = zap.DebugLevel
	}
	p.log.Log(level, what, fields...)
}

// tryBind looks the consumer up rather than creating or updating it, so that a service needs no right to.
func (p *Puller) tryBind(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	consumer, err := p.look(ctx)
	if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return consumer, err
	}
	if err := stream.During(ctx, p.nc, p.Ensure, wire.ConsumerAPI("CREATE", p.stream, p.endpoint)+".>"); err != nil {
		return nil, err
	}
	return p.look(ctx)
}

// look asks for the consumer.
func (p *Puller) look(ctx context.Context) (consumer jetstream.Consumer, err error) {
	err = stream.During(ctx, p.nc, func(ctx context.Context) error {
		if consumer, err = p.js.Consumer(ctx, p.stream, wire.ConsumerName(p.endpoint)); err != nil {
			return err
		}
		return stream.Leads(consumer.CachedInfo().Cluster)
	}, wire.ConsumerAPI("INFO", p.stream, p.endpoint))
	return consumer, err
}

// explain says what is waited for and what may be done about it.
func (p *Puller) explain(err error) string {
	nc := p.nc
	switch {
	case stream.Denied(err) && strings.Contains(err.Error(), stream.MakeConsumer):
		return fmt.Sprintf("waiting for a node to make consumer %s of stream %s, which this user may not",
			wire.ConsumerName(p.endpoint), p.stream)
	case stream.Denied(err):
		return fmt.Sprintf("cannot listen yet: %v", err)
	case !nc.IsConnected():
		servers := nc.Servers()
		slices.Sort(servers) // they take turns at being the first
		if err := nc.LastError(); stream.LoginRefused(err) {
			return fmt.Sprintf("the NATS server at %s refuses this user (%v): %s",
				strings.Join(servers, ", "), err, logs.RefusedRemedy)
		}
		return fmt.Sprintf("waiting for a NATS server at %s: %s", strings.Join(servers, ", "), logs.AwayRemedy)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Sprintf("waiting for a Tranche node to create stream %s", p.stream)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return "waiting for JetStream, which the NATS server does not offer: start it with -js"
	default:
		return fmt.Sprintf("cannot reach consumer %s of stream %s yet; if this goes on, check the NATS permissions",
			wire.ConsumerName(p.endpoint), p.stream)
	}
}
