package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// AckWait is after how long without a heartbeat a message is redelivered. Readers send one at a third of it.
const AckWait = 15 * time.Second

// RecorderAckWait is AckWait for replies and dead letters: recording is fast; a dead node's messages should not wait.
const RecorderAckWait = 5 * time.Second

// maxAckPending bounds a consumer's messages in flight, over all readers; maxWaiting its waiting pulls.
const (
	maxAckPending = 10_000
	maxWaiting    = 4096
)

// metaConcurrency is the key in a consumer's metadata for the concurrency set by operators.
const metaConcurrency = "tranche-concurrency"

// ConsumerSettings are set by operators while services run.
type ConsumerSettings struct {
	// Concurrency of each instance; 0 uses the service's own.
	Concurrency int
}

func (s ConsumerSettings) metadata() map[string]string {
	if s.Concurrency == 0 {
		return nil
	}
	return map[string]string{metaConcurrency: strconv.Itoa(s.Concurrency)}
}

// SettingsOf returns a consumer's settings. Invalid ones count as not set.
func SettingsOf(info *jetstream.ConsumerInfo) ConsumerSettings {
	n, err := strconv.Atoi(info.Config.Metadata[metaConcurrency])
	if err != nil || n < 1 || n > wire.MaxConcurrency {
		return ConsumerSettings{}
	}
	return ConsumerSettings{Concurrency: n}
}

// EnsureConsumer creates or updates the durable consumer shared by an endpoint's instances.
func EnsureConsumer(ctx context.Context, js jetstream.JetStream, endpoint string, settings ConsumerSettings) error {
	return ensureOf(ctx, js, "consumer", endpoint, wire.StreamWork, endpoint, wire.WorkSubject(endpoint), settings)
}

// EnsureLane creates or updates the durable consumer for calls to an endpoint.
func EnsureLane(ctx context.Context, js jetstream.JetStream, endpoint string) error {
	lane := wire.LaneOf(endpoint)
	return ensureOf(ctx, js, "lane", endpoint, wire.StreamWork, lane, wire.WorkSubject(lane), ConsumerSettings{})
}

// EnsureStageConsumer creates or updates the durable consumer for replies to a flow's questions.
func EnsureStageConsumer(ctx context.Context, js jetstream.JetStream, endpoint string) error {
	return ensureOf(ctx, js, "stage consumer", endpoint, wire.StreamStage, endpoint, wire.StageSubjects(endpoint),
		ConsumerSettings{})
}

func ensureOf(ctx context.Context, js jetstream.JetStream, what, endpoint, stream, name, subject string,
	settings ConsumerSettings,
) error {
	if err := wire.ValidateName(endpoint); err != nil {
		return err
	}
	config := ConsumerConfig(wire.ConsumerName(name), subject)
	config.Metadata = settings.metadata()
	if _, err := EnsureDurable(ctx, js, stream, config); err != nil {
		return fmt.Errorf("ensure %s of endpoint %s: %w", what, endpoint, err)
	}
	return nil
}

// EnsureRecorder creates or updates the nodes' durable consumer for replies.
func EnsureRecorder(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	return ensureReader(ctx, js, wire.StreamReply, wire.RecorderConsumer, wire.ReplyPrefix+"*")
}

// EnsureDeadLetterReader creates or updates the nodes' durable consumer for dead letters.
func EnsureDeadLetterReader(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	return ensureReader(ctx, js, wire.StreamDead, wire.DeadLetterConsumer, wire.DeadPrefix+"*")
}

func ensureReader(
	ctx context.Context, js jetstream.JetStream, stream, name, subject string,
) (jetstream.Consumer, error) {
	config := ConsumerConfig(name, subject)
	config.AckWait, config.MaxDeliver = RecorderAckWait, -1 // nodes return what they cannot record yet, indefinitely
	consumer, err := EnsureDurable(ctx, js, stream, config)
	if err != nil {
		return nil, fmt.Errorf("ensure consumer %s: %w", name, err)
	}
	return consumer, nil
}

// EnsureDurable creates or updates a consumer. It tolerates settings that JetStream cannot change.
func EnsureDurable(
	ctx context.Context, js jetstream.JetStream, stream string, want jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	consumer, err := js.CreateOrUpdateConsumer(ctx, stream, want)
	var refused *jetstream.APIError
	if !errors.As(err, &refused) || refused.ErrorCode != jetstream.JSErrCodeConsumerCreate {
		return consumer, err
	}
	found, findErr := js.Consumer(ctx, stream, want.Durable)
	if errors.Is(findErr, jetstream.ErrNotPullConsumer) { // a foreign push consumer
		if err := js.DeleteConsumer(ctx, stream, want.Durable); err != nil {
			return nil, err
		}
		return js.CreateOrUpdateConsumer(ctx, stream, want)
	}
	if findErr != nil {
		return nil, errors.Join(err, findErr)
	}
	config := found.CachedInfo().Config
	if config.AckPolicy != want.AckPolicy {
		return nil, err // it would lose messages
	}
	config.FilterSubject, config.FilterSubjects = want.FilterSubject, nil
	config.AckWait, config.MaxDeliver, config.MaxAckPending = want.AckWait, want.MaxDeliver, want.MaxAckPending
	config.Metadata = want.Metadata
	// A consumer recreated right after deletion can lose its file to the deletion, and then rejects updates. It still
	// delivers, so accept it if its subject is right.
	_, err = js.UpdateConsumer(ctx, stream, config)
	if delivers := found.CachedInfo().Config.FilterSubject == want.FilterSubject; err != nil && !delivers {
		return nil, err
	}
	return found, nil
}

// MendConsumer repairs a consumer that was paused or pointed at other subjects.
func MendConsumer(ctx context.Context, js jetstream.JetStream, info *jetstream.ConsumerInfo) error {
	subject := subjectOf(info)
	if info.Config.FilterSubject != subject || len(info.Config.FilterSubjects) > 0 {
		config := info.Config
		config.FilterSubject, config.FilterSubjects = subject, nil
		if _, err := js.UpdateConsumer(ctx, info.Stream, config); err != nil {
			return fmt.Errorf("fix consumer %s: %w", info.Name, err)
		}
	}
	if info.Paused {
		if _, err := js.ResumeConsumer(ctx, info.Stream, info.Name); err != nil {
			return fmt.Errorf("resume consumer %s: %w", info.Name, err)
		}
	}
	return nil
}

// SetConsumer updates an endpoint's consumer if its settings differ.
func SetConsumer(
	ctx context.Context, js jetstream.JetStream, consumer jetstream.Consumer, settings ConsumerSettings,
) error {
	info := consumer.CachedInfo()
	if SettingsOf(info) == settings {
		return nil
	}
	config := info.Config
	config.Metadata = maps.Clone(config.Metadata)
	delete(config.Metadata, metaConcurrency)
	for key, value := range settings.metadata() {
		if config.Metadata == nil {
			config.Metadata = map[string]string{}
		}
		config.Metadata[key] = value
	}
	if _, err := js.UpdateConsumer(ctx, info.Stream, config); err != nil {
		return fmt.Errorf("set consumer %s: %w", info.Name, err)
	}
	return nil
}

func subjectOf(info *jetstream.ConsumerInfo) string {
	switch info.Stream {
	case wire.StreamReply:
		return wire.ReplyPrefix + "*"
	case wire.StreamDead:
		return wire.DeadPrefix + "*"
	case wire.StreamStage:
		return wire.StageSubjects(info.Name)
	default:
		return wire.WorkSubject(info.Name)
	}
}

// ConsumerConfig returns the configuration of a durable consumer for a subject.
func ConsumerConfig(name, subject string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: AckWait,
		MaxDeliver: wire.MaxDeliver, MaxAckPending: maxAckPending, MaxWaiting: maxWaiting,
	}
}

// KnownFor is how long Incarnation caches the consumer's state. It bounds both the queries (ten per second and
// endpoint, regardless of chunks) and how long a recreated consumer may go unnoticed.
const KnownFor = 100 * time.Millisecond

// AckTimeout bounds the wait for JetStream's acknowledgement or answer. It is short because a publish may be lost
// with its connection, and retrying under the same ID is harmless.
const AckTimeout = 2 * time.Second

// Incarnation tracks when the server's current consumer was created. A recreated stream or consumer restarts its
// sequences, but the server matches acknowledgements by sequence only: one for an old message would remove an
// unprocessed new one, and a heartbeat would delay its redelivery. So each delivery stores its incarnation, and only
// those of the current one are acknowledged.
//
// It is safe for concurrent use.
type Incarnation struct {
	Ask func(context.Context) (time.Time, error) // returns the creation time; set before first use

	Mu    sync.Mutex
	Asked time.Time // time of the last query
	made  time.Time // its answer; zero if there was none
}

// Current returns the consumer's creation time, at most KnownFor old. If it is zero, the server did not answer, and
// nothing may be acknowledged: redelivery is harmless.
func (i *Incarnation) Current() time.Time {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	if time.Since(i.Asked) < KnownFor {
		return i.made
	}
	// Requests are settled even after all of the service's contexts ended.
	ctx, cancel := context.WithTimeout(context.Background(), AckTimeout)
	defer cancel()
	asked := time.Now()
	made, err := i.Ask(ctx)
	if err != nil {
		// Concurrent waiters must not each wait for another timeout.
		asked, made = time.Now(), time.Time{}
	}
	i.Asked, i.made = asked, made
	return made
}

// Learn stores a creation time obtained by a query sent at asked.
func (i *Incarnation) Learn(asked, made time.Time) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	i.Asked, i.made = asked, made
}

const (
	// laneKnown is how long to cache that an endpoint reads calls separately.
	laneKnown = 5 * time.Second
	// laneUnknown is how long to cache that it does not.
	laneUnknown = time.Second
	// laneTimeout bounds that query; without an answer, the call goes with the chunks.
	laneTimeout = 250 * time.Millisecond
)

type laneState struct {
	has   bool
	until time.Time
}

// knownLanes is the cache of a connection. The zero value is ready.
type knownLanes struct {
	mu sync.Mutex
	of map[string]laneState
}

// HasLane reports whether an endpoint's instances read calls separately, as answered by the first instance. Without
// an answer or permission it returns false.
func HasLane(ctx context.Context, nc *nats.Conn, endpoint string) bool {
	p := PermissionsOf(nc)
	p.lanes.mu.Lock()
	known := p.lanes.of[endpoint]
	p.lanes.mu.Unlock()
	if time.Now().Before(known.until) {
		return known.has
	}
	known = laneState{until: time.Now().Add(laneUnknown)}
	if known.has = p.askLane(ctx, endpoint); known.has {
		known.until = time.Now().Add(laneKnown)
	}
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	if p.lanes.of == nil {
		p.lanes.of = map[string]laneState{}
	}
	p.lanes.of[endpoint] = known
	return known.has
}

func (p *Permissions) askLane(ctx context.Context, endpoint string) bool {
	ctx, cancel := context.WithTimeout(ctx, laneTimeout)
	defer cancel()
	subject := wire.StatusSubject(endpoint)
	var status struct {
		Lane bool `json:"lane"`
	}
	err := p.During(ctx, func(ctx context.Context) error {
		msg, err := p.nc.RequestWithContext(ctx, subject, nil)
		if err == nil {
			err = json.Unmarshal(msg.Data, &status)
		}
		return err
	}, subject)
	return err == nil && status.Lane
}
