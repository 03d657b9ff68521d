package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// endpointSet is the endpoints whose consumers are known to exist in the present epoch.
type endpointSet struct {
	making singleflight.Group

	mu    sync.Mutex
	epoch int64
	known map[string]bool
}

func (s *endpointSet) has(epoch int64, endpoint string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return epoch == s.epoch && s.known[endpoint]
}

func (s *endpointSet) add(epoch int64, endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch > s.epoch {
		s.epoch, s.known = epoch, map[string]bool{}
	}
	if epoch == s.epoch {
		s.known[endpoint] = true
	}
}

// exhaustedSweeper sees to messages that are delivered no more.
type exhaustedSweeper interface {
	// Sweep gives up those that two sweeps in a row find left in the streams.
	Sweep(ctx context.Context, all []ConsumersOf) error
	// Forget begins again.
	Forget()
}

// Consumers are those of endpoints: what services are handed their requests by.
type Consumers struct {
	node     *core.Core
	streams  core.Epochs
	interval time.Duration // between two looks, by the leader
	made     endpointSet
	places   places // of services
}

// NewConsumers returns what looks after consumers, at an interval.
func NewConsumers(k *core.Core, streams core.Epochs, interval time.Duration) *Consumers {
	return &Consumers{node: k, streams: streams, interval: interval, made: endpointSet{known: map[string]bool{}}}
}

// Forget has the next who asks for an endpoint's consumer look whether it is there.
func (e *Consumers) Forget(endpoint string) { e.made.forget(endpoint) }

// Ensure sees to it that the endpoint's durable consumer exists, and returns the epoch in which it does. One
// that cannot be made keeps no other endpoint waiting.
func (e *Consumers) Ensure(ctx context.Context, endpoint string) (int64, error) {
	epoch, _ := e.streams.Now()
	if e.made.has(epoch, endpoint) {
		return epoch, nil
	}
	_, err, _ := e.made.making.Do(endpoint+" "+strconv.FormatInt(epoch, 10), func() (any, error) {
		timed, cancel := context.WithTimeout(ctx, core.PublishTimeout)
		defer cancel()
		settings, err := e.settings(timed, endpoint)
		if err != nil {
			return nil, err
		}
		if err := stream.EnsureConsumer(timed, e.node.JS, endpoint, settings); err != nil {
			return nil, err
		}
		e.made.add(epoch, endpoint)
		return nil, nil
	})
	return epoch, err
}

// forget makes the next publication to an endpoint ensure its consumer again.
func (s *endpointSet) forget(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, endpoint)
}

// ChangeEndpoint changes settings of an endpoint, leaves the others as they are and returns all of them. Limits hold at
// once; the concurrency is brought to its consumer, where its services see it, by the leader when that fails here.
// See [pace.Store.ChangeEndpoint].
func (e *Consumers) ChangeEndpoint(
	ctx context.Context, change pace.EndpointChange, actor string,
) (pace.EndpointSetting, error) {
	if kind, _ := workqueue.TargetKind(change.Endpoint); kind == workqueue.KindEndpoint {
		if err := wire.ValidateName(change.Endpoint); err != nil {
			return pace.EndpointSetting{}, err
		}
	}
	set, err := pace.New(e.node.Store).ChangeEndpoint(ctx, change, actor)
	if err != nil {
		return set, err
	}
	e.node.WakeOthers() // what a limit kept back may go now
	if change.Concurrency == nil {
		return set, nil
	}
	timed, cancel := context.WithTimeout(ctx, core.QueryTimeout)
	defer cancel()
	if err := e.applySetting(timed, set); err != nil {
		e.node.Log.Debug("set an endpoint's consumer; the leader will retry", zap.Error(err))
	}
	return set, nil
}

// ConsumersOf is one stream and its consumers, as of about one moment.
type ConsumersOf struct {
	Name      string
	Stream    jetstream.Stream
	Made      time.Time
	First     uint64            // sequence
	Held      map[string]uint64 // messages in the stream, by the name of the consumer that they are for
	Consumers map[string]*jetstream.ConsumerInfo
}

// look reads the consumers of ours that a stream has. Its messages are counted first: those that come in between are
// pending then, and do not look like left ones.
func (e *Consumers) look(ctx context.Context, name, subjects string, consumerOf func(subject string) string,
) (ConsumersOf, error) {
	of := ConsumersOf{Name: name, Held: map[string]uint64{}}
	stream, err := e.node.JS.Stream(ctx, name)
	if err != nil {
		return of, fmt.Errorf("look at stream %s: %w", name, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return of, fmt.Errorf("look at stream %s: %w", name, err)
	}
	of.Stream, of.Made, of.First = stream, info.Created, info.State.FirstSeq
	for subject, count := range info.State.Subjects {
		of.Held[consumerOf(subject)] += count
	}
	of.Consumers, err = In(ctx, stream, consumerOf)
	return of, err
}

// In reads the consumers of ours that a stream has, by their names. With an error it returns what it has read.
func In(ctx context.Context, stream jetstream.Stream, consumerOf func(subject string) string,
) (map[string]*jetstream.ConsumerInfo, error) {
	of := map[string]*jetstream.ConsumerInfo{}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if info.Config.Durable == info.Name && wire.ValidateName(OfConsumer(info.Name)) == nil &&
			consumerOf(info.Config.FilterSubject) == info.Name {
			of[info.Name] = info
		}
	}
	if err := list.Err(); err != nil {
		return of, fmt.Errorf("list the consumers of stream %s: %w", stream.CachedInfo().Config.Name, err)
	}
	return of, nil
}

// OfWork returns the name of the consumer that a subject of the work stream is for.
func OfWork(subject string) string {
	return strings.TrimPrefix(subject, wire.WorkSubject(""))
}

// OfConsumer returns the endpoint that a consumer of the work stream is for.
func OfConsumer(consumer string) string {
	endpoint, _ := wire.EndpointOf(consumer)
	return endpoint
}

// OfStage returns that for a subject of the stream of stages.
func OfStage(subject string) string {
	prefix, _ := strings.CutSuffix(wire.StageSubjects(""), ".>")
	name, _, _ := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
	return name
}

const (
	// discoverWait is how long services may take to say that they are there.
	discoverWait = time.Second
	// discoverEvery is how many rounds of the caretaker pass between two questions who listens.
	discoverEvery = 2
	// maxMadeConsumers bounds the consumers of one stream up to which a node makes more because someone says that he
	// listens: anybody may say that.
	maxMadeConsumers = 1000
)

// Reconciling is the leader task for what no one waits for and what may take its time: it makes the consumers of
// services that may not make their own, brings the limit of deliveries and the settings of endpoints to their
// consumers, and removes messages that are delivered no more. All of it is in JetStream, which knows of no lease:
// whoever does it twice, or late, does what the next round would do.
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
	timed, cancel := context.WithTimeout(ctx, core.ReconcileTimeout)
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

// ensureListeners makes the consumers of endpoints that someone listens on: a service with the least of permissions
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

// places knows how much services say they work on at once, as of the last look at who listens. It is safe for
// concurrent use.
type places struct {
	mu sync.Mutex
	of map[string][]wire.Listener
}

// heard takes what a look has brought. One that says that it has ended, or waits for something, has no place.
func (p *places) heard(listeners []wire.Listener) {
	of := map[string][]wire.Listener{}
	for i := range listeners {
		if l := &listeners[i]; l.State != wire.StateDraining && l.State != wire.StateWaiting {
			of[l.Endpoint] = append(of[l.Endpoint], *l)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of = of
}

// Places is how many requests of so many items all instances of an endpoint say they work on at once; 0 when one does
// not say.
func (e *Consumers) Places(endpoint string, items int) (n int) {
	p := &e.places
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.of[endpoint] {
		switch l := &p.of[endpoint][i]; {
		case l.Concurrency == 0:
			return 0
		case l.Each:
			n += (l.Concurrency + items - 1) / max(items, 1)
		default:
			n += l.Concurrency
		}
	}
	return n
}
