package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	// discoverWait is how long services may take to say that they are there.
	discoverWait = time.Second
	// discoverEvery is how many rounds of the caretaker pass between two questions who listens.
	discoverEvery = 2
	// maxMadeConsumers bounds the consumers of one stream up to which a node makes more because somebody says that he
	// listens: anybody may say that.
	maxMadeConsumers = 1000
)

// Reconciling is the duty for what nobody waits for and what may take its time: it makes the consumers of services that
// may not make their own, brings the limit of deliveries and the settings of endpoints to their consumers, and removes
// messages that are delivered no more. All of it is in JetStream, which knows of no lease: whoever does it twice, or
// late, does what the next round would do.
func (e *Consumers) Reconciling(
	exhausted exhaustedSweeper,
) func(context.Context, workqueue.Lease) (time.Duration, error) {
	var led workqueue.Lease
	round := 0
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if lease != led || !e.node.NC.IsConnected() {
			led = lease
			exhausted.Forget()
		}
		if !e.node.NC.IsConnected() {
			return e.interval, nil
		}
		round++
		return e.interval, e.reconcileOnce(ctx, exhausted, round%discoverEvery == 1)
	}
}

func (e *Consumers) reconcileOnce(ctx context.Context, exhausted exhaustedSweeper, discover bool) error {
	timed, cancel := context.WithTimeout(ctx, kernel.ReconcileTimeout)
	defer cancel()
	work, err := e.look(timed, wire.StreamWork, wire.WorkSubject("*"), OfWork)
	if err != nil {
		return err
	}
	stage, err := e.look(timed, wire.StreamStage, wire.StageSubjects("*"), OfStage)
	if err != nil {
		return err
	}
	err = errors.Join(e.limitDeliveries(timed, work, stage), e.applySettings(timed, work))
	if discover {
		err = errors.Join(err, e.ensureListeners(timed, work, stage))
	}
	return errors.Join(err, exhausted.Sweep(timed, []ConsumersOf{work, stage}))
}

// ensureListeners makes the consumers of endpoints that somebody listens on: a service with the least of permissions
// may not make its own.
func (e *Consumers) ensureListeners(ctx context.Context, work, stage ConsumersOf) error {
	listeners, err := wire.Discover(ctx, e.node.NC, discoverWait)
	if err != nil {
		return err
	}
	e.places.heard(listeners)
	var failed error
	seen := map[string]bool{}
	for _, l := range listeners {
		if l.Stages > 0 && !seen["flow "+l.Endpoint] && mayMake(stage, l.Endpoint) {
			seen["flow "+l.Endpoint] = true
			failed = errors.Join(failed, stream.EnsureStageConsumer(ctx, e.node.JS, l.Endpoint))
		}
		if lane := wire.LaneOf(l.Endpoint); l.Lanes && !seen[lane] && mayMake(work, lane) {
			seen[lane] = true
			failed = errors.Join(failed, stream.EnsureLane(ctx, e.node.JS, l.Endpoint))
		}
		if seen[l.Endpoint] || !mayMake(work, l.Endpoint) {
			continue
		}
		seen[l.Endpoint] = true
		e.made.forget(l.Endpoint) // it was known to be there, and is not
		if _, err := e.Ensure(ctx, l.Endpoint); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// mayMake reports whether a consumer is missing and there is room for it.
func mayMake(of ConsumersOf, endpoint string) bool {
	return of.Consumers[endpoint] == nil && len(of.Consumers) < maxMadeConsumers
}

// limitDeliveries brings back consumers without our limit of deliveries: a node of a version that knew of none makes
// them so whenever it meets an endpoint, beside this one in a rolling upgrade too.
func (e *Consumers) limitDeliveries(ctx context.Context, work, stage ConsumersOf) (failed error) {
	for name, info := range work.Consumers {
		if endpoint, lane := wire.EndpointOf(name); lane && info.Config.MaxDeliver != wire.MaxDeliver {
			failed = errors.Join(failed, stream.EnsureLane(ctx, e.node.JS, endpoint))
		} else if info.Config.MaxDeliver != wire.MaxDeliver {
			e.made.forget(name) // what was known of it holds no more
			_, err := e.Ensure(ctx, name)
			failed = errors.Join(failed, err)
		}
	}
	for name, info := range stage.Consumers {
		if info.Config.MaxDeliver != wire.MaxDeliver {
			failed = errors.Join(failed, stream.EnsureStageConsumer(ctx, e.node.JS, name))
		}
	}
	return failed
}

// applySettings brings what operators have set to the consumers, where the services look.
func (e *Consumers) applySettings(ctx context.Context, work ConsumersOf) error {
	settings, err := pace.New(e.node.Store).EndpointSettings(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, s := range settings {
		info, want := work.Consumers[s.Endpoint], settingsOf(s)
		if info == nil || stream.SettingsOf(info) == want {
			continue
		}
		failed = errors.Join(failed, e.applySetting(ctx, s))
	}
	return failed
}

// applySetting brings one endpoint's settings to its consumer, if it has one: whoever makes it later finds them.
func (e *Consumers) applySetting(ctx context.Context, s pace.EndpointSetting) error {
	consumer, err := e.node.JS.Consumer(ctx, wire.StreamWork, wire.ConsumerName(s.Endpoint))
	if err != nil {
		return fmt.Errorf("set endpoint %s: %w", s.Endpoint, err)
	}
	if err := stream.SetConsumer(ctx, e.node.JS, consumer, settingsOf(s)); err != nil {
		return err
	}
	e.node.Log.Info("endpoint set", zap.String("endpoint", s.Endpoint), zap.Int("concurrency", s.Concurrency))
	return nil
}

// settings returns what operators have set for an endpoint.
func (e *Consumers) settings(ctx context.Context, endpoint string) (stream.ConsumerSettings, error) {
	all, err := pace.New(e.node.Store).EndpointSettings(ctx)
	if err != nil {
		return stream.ConsumerSettings{}, err
	}
	for _, s := range all {
		if s.Endpoint == endpoint {
			return settingsOf(s), nil
		}
	}
	return stream.ConsumerSettings{}, nil
}

func settingsOf(s pace.EndpointSetting) stream.ConsumerSettings {
	return stream.ConsumerSettings{Concurrency: s.Concurrency}
}
