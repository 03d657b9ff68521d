package streams

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// Consumers manages the endpoints' consumers, from which services pull requests.
type Consumers struct {
	node     *core.Core
	streams  core.Epochs
	interval time.Duration // between reconciliations, by the leader
	made     endpointSet
	places   places // concurrency of services
}

// NewConsumers returns consumers that the leader reconciles at an interval.
func NewConsumers(k *core.Core, streams core.Epochs, interval time.Duration) *Consumers {
	return &Consumers{node: k, streams: streams, interval: interval, made: endpointSet{known: map[string]bool{}}}
}

// Forget makes the next Ensure check an endpoint's consumer.
func (e *Consumers) Forget(endpoint string) { e.made.forget(endpoint) }

// Ensure creates a missing consumer, and returns the epoch in which it exists. A failure delays no other endpoint.
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

func (s *endpointSet) forget(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, endpoint)
}

// ChangeEndpoint changes settings and returns all of them. Limits apply immediately. The concurrency is written to
// the consumer, for services to read, by the leader if that fails here. See [pace.Store.ChangeEndpoint].
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
	e.node.WakeOthers() // the change may raise a limit
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

// ConsumersOf is a stream and its consumers, read at about the same time.
type ConsumersOf struct {
	Name      string
	Stream    jetstream.Stream
	Made      time.Time
	First     uint64            // sequence
	Held      map[string]uint64 // messages in the stream, by the consumer that they are for
	Consumers map[string]*jetstream.ConsumerInfo
}

// look reads a stream and our consumers on it. Messages are counted first: those in between count as pending, not as
// left behind.
func (e *Consumers) look(ctx context.Context, name, subjects string, consumerOf func(subject string) string,
) (ConsumersOf, error) {
	of := ConsumersOf{Name: name, Held: map[string]uint64{}}
	stream, err := e.node.JS.Stream(ctx, name)
	if err != nil {
		return of, fmt.Errorf("check stream %s: %w", name, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return of, fmt.Errorf("check stream %s: %w", name, err)
	}
	of.Stream, of.Made, of.First = stream, info.Created, info.State.FirstSeq
	for subject, count := range info.State.Subjects {
		of.Held[consumerOf(subject)] += count
	}
	of.Consumers, err = In(ctx, stream, consumerOf)
	return of, err
}

// In returns our consumers of a stream by name. With an error it returns those read so far.
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

// OfConsumer returns the endpoint of a consumer of the work stream.
func OfConsumer(consumer string) string {
	endpoint, _ := wire.EndpointOf(consumer)
	return endpoint
}

// OfStage returns the name of the consumer that a subject of the stage stream is for.
func OfStage(subject string) string {
	prefix, _ := strings.CutSuffix(wire.StageSubjects(""), ".>")
	name, _, _ := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
	return name
}

const (
	// discoverWait is how long services may take to announce themselves.
	discoverWait = time.Second
	// discoverEvery is the number of rounds per discovery of listeners.
	discoverEvery = 2
	// maxMadeConsumers limits a stream's consumers made for listeners: any client can claim to listen.
	maxMadeConsumers = 1000
)

// Reconciling is the leader task for endpoints. It makes the consumers that services may not make themselves, applies
// the delivery limit and settings, and removes messages no longer delivered. JetStream knows no lease, but all of it
// is idempotent.
func (e *Consumers) Reconciling(
	exhausted *ExhaustedSweep,
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

func (e *Consumers) reconcileOnce(ctx context.Context, exhausted *ExhaustedSweep, discover bool) error {
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

// ensureListeners makes the consumers of services that may not make their own.
func (e *Consumers) ensureListeners(ctx context.Context, work, stage ConsumersOf) error {
	listeners, err := wire.Discover(ctx, e.node.NC, discoverWait)
	if err != nil {
		return err
	}
	failed := pace.New(e.node.Store).SaveListening(ctx, e.places.heard(listeners))
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
		e.made.forget(l.Endpoint) // its consumer may have been deleted
		if _, err := e.Ensure(ctx, l.Endpoint); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func mayMake(of ConsumersOf, endpoint string) bool {
	return of.Consumers[endpoint] == nil && len(of.Consumers) < maxMadeConsumers
}

// limitDeliveries restores the delivery limit, which nodes of versions without it remove, also in a rolling upgrade.
func (e *Consumers) limitDeliveries(ctx context.Context, work, stage ConsumersOf) (failed error) {
	for name, info := range work.Consumers {
		if endpoint, lane := wire.EndpointOf(name); lane && info.Config.MaxDeliver != wire.MaxDeliver {
			failed = errors.Join(failed, stream.EnsureLane(ctx, e.node.JS, endpoint))
		} else if info.Config.MaxDeliver != wire.MaxDeliver {
			e.made.forget(name) // it is outdated
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

// applySettings writes the operators' settings to the consumers, where services read them.
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

// applySetting writes one endpoint's settings to its consumer. A consumer made later gets them from the store.
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

// places is the concurrency that services reported at the last discovery. It is safe for concurrent use.
type places struct {
	mu sync.Mutex
	of map[string][]wire.Listener
}

// heard stores the result of a discovery, and returns its endpoints. Draining and waiting services do not count.
func (p *places) heard(listeners []wire.Listener) []string {
	of := map[string][]wire.Listener{}
	for i := range listeners {
		if l := &listeners[i]; l.State != wire.StateDraining && l.State != wire.StateWaiting {
			of[l.Endpoint] = append(of[l.Endpoint], *l)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of = of
	return slices.AppendSeq([]string{}, maps.Keys(of))
}

// Places returns how many requests of this many items the instances of an endpoint process concurrently; 0: unknown.
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
