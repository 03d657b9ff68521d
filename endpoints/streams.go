package endpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Defaults of StreamConfig.
const (
	DefaultReplicas      = 1
	DefaultWorkMaxBytes  = 1 << 30
	DefaultReplyMaxBytes = 2 << 30
	DefaultEventMaxBytes = 128 << 20
	DefaultEventMaxAge   = 7 * 24 * time.Hour
)

// AckWait is how long a delivered message may go without a sign of life before it is delivered again. A reader ticks
// at a third of it.
const AckWait = 15 * time.Second

// RecorderAckWait is AckWait for replies. Recording takes milliseconds; what a dead node had fetched is not to wait
// long.
const RecorderAckWait = 5 * time.Second

// maxAckPending bounds the messages of one consumer that are out at once, over all its readers; maxWaiting the readers
// that wait at once.
const (
	maxAckPending = 10_000
	maxWaiting    = 4096
)

// duplicateWindow is how long a Nats-Msg-Id is remembered.
const duplicateWindow = 2 * time.Minute

// StreamConfig sizes the three streams. A zero field means its default.
type StreamConfig struct {
	Replicas int // 1, 3 or 5
	// Bytes on disk. At a full work or reply stream publishers wait; of events the oldest go.
	WorkMaxBytes, ReplyMaxBytes, EventMaxBytes int64
	EventMaxAge                                time.Duration
	// Memory keeps the streams in memory: for tests.
	Memory bool
}

func (c StreamConfig) withDefaults() StreamConfig {
	c.Replicas = cmp.Or(c.Replicas, DefaultReplicas)
	c.WorkMaxBytes = cmp.Or(c.WorkMaxBytes, DefaultWorkMaxBytes)
	c.ReplyMaxBytes = cmp.Or(c.ReplyMaxBytes, DefaultReplyMaxBytes)
	c.EventMaxBytes = cmp.Or(c.EventMaxBytes, DefaultEventMaxBytes)
	c.EventMaxAge = cmp.Or(c.EventMaxAge, DefaultEventMaxAge)
	return c
}

// StreamStates says since when the streams exist. A later time than one remembered means that the stream was recreated
// and what was in it is lost.
type StreamStates struct {
	WorkCreated, ReplyCreated time.Time
}

// EnsureStreams creates the three streams, or brings existing ones to cfg. It may be called by many nodes at once. A
// stream with another retention or storage is a *StreamConflictError.
func EnsureStreams(ctx context.Context, js jetstream.JetStream, cfg StreamConfig) (StreamStates, error) {
	cfg = cfg.withDefaults()
	var states StreamStates
	var err error
	if states.WorkCreated, err = ensureStream(ctx, js, cfg.work()); err != nil {
		return StreamStates{}, err
	}
	if states.ReplyCreated, err = ensureStream(ctx, js, cfg.reply()); err != nil {
		return StreamStates{}, err
	}
	if _, err = ensureStream(ctx, js, cfg.event()); err != nil {
		return StreamStates{}, err
	}
	return states, nil
}

// work has DiscardNew: a full stream refuses a request, so that the node slows down instead of losing the oldest.
// AllowMsgTTL lets a node give a request the time to live of its slice.
func (c StreamConfig) work() jetstream.StreamConfig {
	s := c.stream(StreamWork, workPrefix+"*", jetstream.WorkQueuePolicy, c.WorkMaxBytes)
	s.Discard = jetstream.DiscardNew
	s.AllowMsgTTL = true
	return s
}

// reply has DiscardNew for the same reason: a service keeps its request until its reply is taken.
func (c StreamConfig) reply() jetstream.StreamConfig {
	s := c.stream(StreamReply, replyPrefix+"*", jetstream.WorkQueuePolicy, c.ReplyMaxBytes)
	s.Discard = jetstream.DiscardNew
	return s
}

func (c StreamConfig) event() jetstream.StreamConfig {
	s := c.stream(StreamEvent, eventPrefix+">", jetstream.LimitsPolicy, c.EventMaxBytes)
	s.Discard = jetstream.DiscardOld
	s.MaxAge = c.EventMaxAge
	return s
}

func (c StreamConfig) stream(name, subject string, retention jetstream.RetentionPolicy, maxBytes int64,
) jetstream.StreamConfig {
	storage := jetstream.FileStorage
	if c.Memory {
		storage = jetstream.MemoryStorage
	}
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{subject}, Retention: retention, Storage: storage, Replicas: c.Replicas,
		MaxBytes: maxBytes, Duplicates: duplicateWindow,
	}
}

// ensureStream returns the time of the stream's making. Whoever loses a race to create it goes on to update.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (time.Time, error) {
	stream, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			stream, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("ensure stream %s: %w", want.Name, err)
	}
	have := stream.CachedInfo()
	if err := sameKind(have.Config, want); err != nil {
		return time.Time{}, err
	}
	if upToDate(have.Config, want) {
		return have.Created, nil
	}
	if _, err := js.UpdateStream(ctx, want); err != nil {
		return time.Time{}, fmt.Errorf("update stream %s: %w", want.Name, err)
	}
	return have.Created, nil
}

func sameKind(have, want jetstream.StreamConfig) error {
	if have.Retention != want.Retention {
		return &StreamConflictError{want.Name, "retention", have.Retention.String(), want.Retention.String()}
	}
	if have.Storage != want.Storage {
		return &StreamConflictError{want.Name, "storage", have.Storage.String(), want.Storage.String()}
	}
	if have.Sealed {
		return &StreamConflictError{want.Name, "sealed", "true", "false"}
	}
	return nil
}

func upToDate(have, want jetstream.StreamConfig) bool {
	return len(have.Subjects) == 1 && have.Subjects[0] == want.Subjects[0] && have.Replicas == want.Replicas &&
		have.MaxBytes == want.MaxBytes && have.MaxAge == want.MaxAge && have.Discard == want.Discard &&
		have.Duplicates == want.Duplicates && have.AllowMsgTTL == want.AllowMsgTTL && unlimited(have)
}

// unlimited reports whether a stream has none of the limits and tricks that ours do without.
func unlimited(have jetstream.StreamConfig) bool {
	return have.MaxMsgs <= 0 && have.MaxMsgSize <= 0 && have.MaxMsgsPerSubject <= 0 && !have.DiscardNewPerSubject &&
		!have.NoAck && have.SubjectTransform == nil && have.RePublish == nil && have.MaxConsumers <= 0
}

// EnsureConsumer creates the durable consumer that the instances of an endpoint share, or brings it to date.
func EnsureConsumer(ctx context.Context, js jetstream.JetStream, endpoint string) error {
	if err := ValidateName(endpoint); err != nil {
		return err
	}
	_, err := js.CreateOrUpdateConsumer(ctx, StreamWork, consumerConfig(ConsumerName(endpoint), WorkSubject(endpoint)))
	if err != nil {
		return fmt.Errorf("ensure consumer of endpoint %s: %w", endpoint, err)
	}
	return nil
}

// EnsureRecorder creates the durable consumer through which nodes read replies, or brings it to date, and returns it.
func EnsureRecorder(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	config := consumerConfig(RecorderConsumer, replyPrefix+"*")
	config.AckWait = RecorderAckWait
	consumer, err := js.CreateOrUpdateConsumer(ctx, StreamReply, config)
	if err != nil {
		return nil, fmt.Errorf("ensure consumer %s: %w", RecorderConsumer, err)
	}
	return consumer, nil
}

// MendConsumer brings a consumer of ours back that somebody has paused or pointed at other subjects. It does nothing to
// one that is as it should be.
func MendConsumer(ctx context.Context, js jetstream.JetStream, consumer jetstream.Consumer) error {
	info := consumer.CachedInfo()
	subject := WorkSubject(info.Name)
	if info.Stream == StreamReply {
		subject = replyPrefix + "*"
	}
	if info.Config.FilterSubject != subject || len(info.Config.FilterSubjects) > 0 {
		config := info.Config
		config.FilterSubject, config.FilterSubjects = subject, nil
		if _, err := js.UpdateConsumer(ctx, info.Stream, config); err != nil {
			return fmt.Errorf("mend consumer %s: %w", info.Name, err)
		}
	}
	if info.Paused {
		if _, err := js.ResumeConsumer(ctx, info.Stream, info.Name); err != nil {
			return fmt.Errorf("resume consumer %s: %w", info.Name, err)
		}
	}
	return nil
}

// consumerConfig has no MaxDeliver: a message past it would stay in a work queue for ever, delivered to nobody. The SDK
// gives up on a request after MaxDeliveries by saying so in a reply.
func consumerConfig(name, subject string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: AckWait,
		MaxDeliver: -1, MaxAckPending: maxAckPending, MaxWaiting: maxWaiting,
	}
}
