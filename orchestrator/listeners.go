package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
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

// reconciling is the duty for what nobody waits for and what may take its time: it makes the consumers of services that
// may not make their own, brings the limit of deliveries and the settings of endpoints to their consumers, and removes
// messages that are delivered no more. All of it is in JetStream, which knows of no lease: whoever does it twice, or
// late, does what the next round would do.
func (n *Node) reconciling() func(context.Context, workqueue.Lease) (time.Duration, error) {
	var sweep exhaustedSweep
	var led workqueue.Lease
	round := 0
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if lease != led || !n.nc.IsConnected() {
			led, sweep = lease, exhaustedSweep{}
		}
		if !n.nc.IsConnected() {
			return n.cfg.ReconcileInterval, nil
		}
		round++
		return n.cfg.ReconcileInterval, n.reconcileOnce(ctx, &sweep, round%discoverEvery == 1)
	}
}

func (n *Node) reconcileOnce(ctx context.Context, sweep *exhaustedSweep, discover bool) error {
	timed, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	work, err := n.look(timed, wire.StreamWork, wire.WorkSubject("*"), workConsumer)
	if err != nil {
		return err
	}
	stage, err := n.look(timed, wire.StreamStage, wire.StageSubjects("*"), stageConsumer)
	if err != nil {
		return err
	}
	err = errors.Join(n.limitDeliveries(timed, work, stage), n.applySettings(timed, work))
	if discover {
		err = errors.Join(err, n.ensureListeners(timed, work, stage))
	}
	return errors.Join(err, n.sweepExhausted(timed, sweep, []consumersOf{work, stage}))
}

// One round of the caretaker; the next begins anew.
const reconcileTimeout = 30 * time.Second

// workConsumer and stageConsumer return the name of the consumer that a subject is for.
func workConsumer(subject string) string {
	return strings.TrimPrefix(subject, wire.WorkSubject(""))
}

func stageConsumer(subject string) string {
	prefix, _ := strings.CutSuffix(wire.StageSubjects(""), ".>")
	name, _, _ := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
	return name
}

// ensureListeners makes the consumers of endpoints that somebody listens on: a service with the least of permissions
// may not make its own.
func (n *Node) ensureListeners(ctx context.Context, work, stage consumersOf) error {
	listeners, err := wire.Discover(ctx, n.nc, discoverWait)
	if err != nil {
		return err
	}
	var failed error
	seen := map[string]bool{}
	for _, l := range listeners {
		if l.Stages > 0 && !seen["flow "+l.Endpoint] && mayMake(stage, l.Endpoint) {
			seen["flow "+l.Endpoint] = true
			failed = errors.Join(failed, stream.EnsureStageConsumer(ctx, n.js, l.Endpoint))
		}
		if seen[l.Endpoint] || !mayMake(work, l.Endpoint) {
			continue
		}
		seen[l.Endpoint] = true
		n.endpoints.forget(l.Endpoint) // it was known to be there, and is not
		if _, err := n.ensureEndpoint(ctx, l.Endpoint); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// mayMake reports whether a consumer is missing and there is room for it.
func mayMake(of consumersOf, endpoint string) bool {
	return of.consumers[endpoint] == nil && len(of.consumers) < maxMadeConsumers
}

// limitDeliveries brings back consumers without our limit of deliveries: a node of a version that knew of none makes
// them so whenever it meets an endpoint, beside this one in a rolling upgrade too.
func (n *Node) limitDeliveries(ctx context.Context, work, stage consumersOf) (failed error) {
	for name, info := range work.consumers {
		if info.Config.MaxDeliver != wire.MaxDeliver {
			n.endpoints.forget(name) // what was known of it holds no more
			_, err := n.ensureEndpoint(ctx, name)
			failed = errors.Join(failed, err)
		}
	}
	for name, info := range stage.consumers {
		if info.Config.MaxDeliver != wire.MaxDeliver {
			failed = errors.Join(failed, stream.EnsureStageConsumer(ctx, n.js, name))
		}
	}
	return failed
}

// applySettings brings what operators have set to the consumers, where the services look.
func (n *Node) applySettings(ctx context.Context, work consumersOf) error {
	settings, err := pace.New(n.store).EndpointSettings(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, s := range settings {
		info, want := work.consumers[s.Endpoint], settingsOf(s)
		if info == nil || stream.SettingsOf(info) == want {
			continue
		}
		failed = errors.Join(failed, n.applySetting(ctx, s))
	}
	return failed
}

// applySetting brings one endpoint's settings to its consumer, if it has one: whoever makes it later finds them.
func (n *Node) applySetting(ctx context.Context, s pace.EndpointSetting) error {
	consumer, err := n.js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(s.Endpoint))
	if err != nil {
		return fmt.Errorf("set endpoint %s: %w", s.Endpoint, err)
	}
	if err := stream.SetConsumer(ctx, n.js, consumer, settingsOf(s)); err != nil {
		return err
	}
	n.log.Info("endpoint set", zap.String("endpoint", s.Endpoint), zap.Int("concurrency", s.Concurrency))
	return nil
}

// settings returns what operators have set for an endpoint.
func (n *Node) settings(ctx context.Context, endpoint string) (stream.ConsumerSettings, error) {
	all, err := pace.New(n.store).EndpointSettings(ctx)
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
