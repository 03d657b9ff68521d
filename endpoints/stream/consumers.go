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

// AckWait is how long a delivered message may go without a heartbeat before it is delivered again. A reader ticks
// at a third of it.
const AckWait = 15 * time.Second

// RecorderAckWait is AckWait for replies and dead letters. Recording takes milliseconds; what a dead node had fetched
// is not to wait long.
const RecorderAckWait = 5 * time.Second

// maxAckPending bounds the messages of one consumer that are out at once, over all its readers; maxWaiting the readers
// that wait at once.
const (
	maxAckPending = 10_000
	maxWaiting    = 4096
)

// metaConcurrency is the key of a consumer's metadata under which operators set an endpoint's concurrency.
const metaConcurrency = "tranche-concurrency"

// ConsumerSettings is what operators may set for an endpoint while its services run.
type ConsumerSettings struct {
	// Concurrency of each instance; 0 leaves it to the service.
	Concurrency int
}

func (s ConsumerSettings) metadata() map[string]string {
	if s.Concurrency == 0 {
		return nil
	}
	return map[string]string{metaConcurrency: strconv.Itoa(s.Concurrency)}
}

// SettingsOf reads the settings from a consumer. What cannot be read counts as not set.
func SettingsOf(info *jetstream.ConsumerInfo) ConsumerSettings {
	n, err := strconv.Atoi(info.Config.Metadata[metaConcurrency])
	if err != nil || n < 1 || n > wire.MaxConcurrency {
		return ConsumerSettings{}
	}
	return ConsumerSettings{Concurrency: n}
}

// EnsureConsumer creates the durable consumer that the instances of an endpoint share, or updates it.
func EnsureConsumer(ctx context.Context, js jetstream.JetStream, endpoint string, settings ConsumerSettings) error {
	return ensureOf(ctx, js, "consumer", endpoint, wire.StreamWork, endpoint, wire.WorkSubject(endpoint), settings)
}

// EnsureLane creates the durable consumer through which the instances of an endpoint read calls, or updates it.
func EnsureLane(ctx context.Context, js jetstream.JetStream, endpoint string) error {
	lane := wire.LaneOf(endpoint)
	return ensureOf(ctx, js, "lane", endpoint, wire.StreamWork, lane, wire.WorkSubject(lane), ConsumerSettings{})
}

// EnsureStageConsumer creates the durable consumer through which the instances of a flow read the replies to what the
// flow has asked, or updates it.
func EnsureStageConsumer(ctx context.Context, js jetstream.JetStream, endpoint string) error {
	return ensureOf(ctx, js, "stage consumer", endpoint, wire.StreamStage, endpoint, wire.StageSubjects(endpoint),
		ConsumerSettings{})
}

// ensureOf creates or updates a consumer of an endpoint, for messages on a subject.
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

// EnsureRecorder creates the durable consumer through which nodes read replies, or brings it to date, and returns it.
func EnsureRecorder(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	return ensureReader(ctx, js, wire.StreamReply, wire.RecorderConsumer, wire.ReplyPrefix+"*")
}

// EnsureDeadLetterReader creates the durable consumer through which nodes read dead letters, or brings it to date, and
// returns it.
func EnsureDeadLetterReader(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	return ensureReader(ctx, js, wire.StreamDead, wire.DeadLetterConsumer, wire.DeadPrefix+"*")
}

func ensureReader(
	ctx context.Context, js jetstream.JetStream, stream, name, subject string,
) (jetstream.Consumer, error) {
	config := ConsumerConfig(name, subject)
	config.AckWait, config.MaxDeliver = RecorderAckWait, -1 // a node gives back what it cannot record now, indefinitely
	consumer, err := EnsureDurable(ctx, js, stream, config)
	if err != nil {
		return nil, fmt.Errorf("ensure consumer %s: %w", name, err)
	}
	return consumer, nil
}

// EnsureDurable creates a consumer or brings it to date. Whoever made it may have chosen otherwise what JetStream
// cannot change, such as how many pulls may wait; it serves anyway.
func EnsureDurable(
	ctx context.Context, js jetstream.JetStream, stream string, want jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	consumer, err := js.CreateOrUpdateConsumer(ctx, stream, want)
	var refused *jetstream.APIError
	if !errors.As(err, &refused) || refused.ErrorCode != jetstream.JSErrCodeConsumerCreate {
		return consumer, err
	}
	found, findErr := js.Consumer(ctx, stream, want.Durable)
	if errors.Is(findErr, jetstream.ErrNotPullConsumer) { // someone else's, who has what is delivered sent to him
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
		return nil, err // it would lose what it delivers
	}
	config.FilterSubject, config.FilterSubjects = want.FilterSubject, nil
	config.AckWait, config.MaxDeliver, config.MaxAckPending = want.AckWait, want.MaxDeliver, want.MaxAckPending
	config.Metadata = want.Metadata
	// A consumer that was deleted and made again at once can lose its file to the deletion, and then takes no change any
	// more. It delivers what it should, which is better than to publish nothing for its endpoint.
	_, err = js.UpdateConsumer(ctx, stream, config)
	if delivers := found.CachedInfo().Config.FilterSubject == want.FilterSubject; err != nil && !delivers {
		return nil, err
	}
	return found, nil
}

// MendConsumer brings a consumer of ours back that someone has paused or pointed at other subjects. It does nothing to
// one that is as it should be.
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

// SetConsumer brings the settings of an endpoint's consumer to what they should be. It does nothing when they are.
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

// subjectOf returns what a consumer of ours has to read.
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

// ConsumerConfig is a durable consumer of ours that reads a subject.
func ConsumerConfig(name, subject string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: AckWait,
		MaxDeliver: wire.MaxDeliver, MaxAckPending: maxAckPending, MaxWaiting: maxWaiting,
	}
}

// KnownFor is how long an answer about the consumer is taken for true. It bounds both the questions asked (ten a second
// and endpoint, however many chunks there are) and the time in which a consumer made again can go unnoticed.
const KnownFor = 100 * time.Millisecond

// AckTimeout is how long an acknowledgement or an answer of JetStream is waited for. It is short because trying again
// under the same id is harmless, and a publish can be lost with a connection.
const AckTimeout = 2 * time.Second

// Incarnation knows when the consumer that a server has now was made. A stream or consumer that is deleted and made
// anew counts its messages from 1 again, while the server takes an acknowledgement by the sequence alone: one for an
// old message would remove a new one that no one has seen to, and a heartbeat would keep it from being delivered
// again. So each delivery remembers the incarnation that it came from, and only the one of now is ever spoken to.
//
// It is safe for concurrent use.
type Incarnation struct {
	Ask func(context.Context) (time.Time, error) // when the consumer was made; set before the first use

	Mu    sync.Mutex
	Asked time.Time // when the last question was put
	made  time.Time // its answer; zero when there was none
}

// Current returns when the consumer was made, as of at most knownFor ago. It is zero when the server does not say; then
// nothing may be acknowledged: what is not is delivered again, which does no harm.
func (i *Incarnation) Current() time.Time {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	if time.Since(i.Asked) < KnownFor {
		return i.made
	}
	// Requests are settled after every context of the service has ended, too.
	ctx, cancel := context.WithTimeout(context.Background(), AckTimeout)
	defer cancel()
	asked := time.Now()
	made, err := i.Ask(ctx)
	if err != nil {
		// Those who waited for this answer do not each wait as long again.
		asked, made = time.Now(), time.Time{}
	}
	i.Asked, i.made = asked, made
	return made
}

// Learn takes an answer that came otherwise, to a question put at asked.
func (i *Incarnation) Learn(asked, made time.Time) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	i.Asked, i.made = asked, made
}

const (
	// laneKnown is no wait: how long it is taken for true that an endpoint reads calls apart from chunks.
	laneKnown = 5 * time.Second
	// laneUnknown is no wait: how long it is taken for true that an endpoint does not.
	laneUnknown = time.Second
	// laneTimeout is how long a caller waits to hear whether an endpoint does; then the call goes where chunks go.
	laneTimeout = 250 * time.Millisecond
)

// laneState is what is known of one endpoint.
type laneState struct {
	has   bool
	until time.Time
}

// knownLanes is what is known over one connection. The zero value is ready.
type knownLanes struct {
	mu sync.Mutex
	of map[string]laneState
}

// HasLane reports whether the instances of an endpoint read calls apart from chunks. Of those the one that answers
// first speaks for all. Where no one answers, or no one may be asked, calls go where chunks go.
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
