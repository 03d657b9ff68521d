// Package stream manages the protocol's use of JetStream: it creates and updates streams and consumers ([Ensure],
// [EnsureConsumer]), tests that streams store messages ([Probe]), tracks recreated consumers ([Incarnation]) and
// denied permissions ([Permissions]), and finds suspended flows ([SuspendedOf]).
//
// It reads subjects, settings and headers, not bodies. Everything is safe for concurrent use, and all queries are
// bounded in time.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Defaults of Config.
const (
	DefaultReplicas      = 1
	DefaultWorkMaxBytes  = 1 << 30
	DefaultReplyMaxBytes = 2 << 30
	DefaultEventMaxBytes = 128 << 20
	// DefaultEventMaxAge is how long events are kept.
	DefaultEventMaxAge   = 7 * 24 * time.Hour
	DefaultStageMaxBytes = 512 << 20
	DefaultFlowMaxBytes  = 512 << 20
	DefaultDeadMaxBytes  = 64 << 20
)

// flowMaxAge bounds how long a suspended chunk's state is kept. Its TTL is shorter.
const flowMaxAge = 24 * time.Hour

// duplicateWindow is how long a Nats-Msg-Id is remembered.
const duplicateWindow = 2 * time.Minute

// Config sizes the streams. Zero fields mean defaults.
type Config struct {
	Replicas int // 1, 3 or 5
	// MoreReplicas keeps replicas that a stream has beyond Replicas.
	MoreReplicas bool
	// Bytes on disk. If the work or reply stream is full, publishers wait; the event stream drops its oldest.
	WorkMaxBytes, ReplyMaxBytes, EventMaxBytes int64
	EventMaxAge                                time.Duration
	// Bytes of replies to flows, states of suspended chunks, and dead letters not yet saved by a node. If one is full,
	// services wait.
	StageMaxBytes, FlowMaxBytes, DeadMaxBytes int64
	// Memory keeps the streams in memory, for tests.
	Memory bool
	// Installation is the ID of the database that owns the streams; empty for any.
	Installation string
}

// metaInstallation is the key of the owner in a stream's metadata.
const metaInstallation = "tranche_installation"

// WithDefaults replaces zero fields by defaults.
func (c Config) WithDefaults() Config {
	c.Replicas = cmp.Or(c.Replicas, DefaultReplicas)
	c.WorkMaxBytes = cmp.Or(c.WorkMaxBytes, DefaultWorkMaxBytes)
	c.ReplyMaxBytes = cmp.Or(c.ReplyMaxBytes, DefaultReplyMaxBytes)
	c.EventMaxBytes = cmp.Or(c.EventMaxBytes, DefaultEventMaxBytes)
	c.EventMaxAge = cmp.Or(c.EventMaxAge, DefaultEventMaxAge)
	c.StageMaxBytes = cmp.Or(c.StageMaxBytes, DefaultStageMaxBytes)
	c.FlowMaxBytes = cmp.Or(c.FlowMaxBytes, DefaultFlowMaxBytes)
	c.DeadMaxBytes = cmp.Or(c.DeadMaxBytes, DefaultDeadMaxBytes)
	return c
}

// States holds the streams' creation times. A later time means that the stream was recreated without its messages.
type States struct {
	WorkCreated, ReplyCreated, StageCreated, FlowCreated time.Time
}

func (c Config) all() []jetstream.StreamConfig {
	c = c.WithDefaults()
	work := c.queue(wire.StreamWork, wire.WorkPrefix+"*", c.WorkMaxBytes)
	work.AllowMsgTTL = true // permits requests with a TTL
	return []jetstream.StreamConfig{
		work, c.queue(wire.StreamReply, wire.ReplyPrefix+"*", c.ReplyMaxBytes),
		c.queue(wire.StreamStage, wire.StagePrefix+">", c.StageMaxBytes), c.flow(), c.event(),
		c.queue(wire.StreamDead, wire.DeadPrefix+"*", c.DeadMaxBytes),
	}
}

// Bytes returns the total size of the full streams on each server that stores them.
func (c Config) Bytes() (all int64) {
	for _, stream := range c.all() {
		all += stream.MaxBytes
	}
	return all
}

// Ensure creates or updates the streams. If one has another retention or storage, it returns a *ConflictError. Nodes
// only call [Create]; the leader does the rest.
func Ensure(ctx context.Context, js jetstream.JetStream, cfg Config) (States, error) {
	states, err := Create(ctx, js, cfg)
	if err != nil {
		return States{}, err
	}
	streams, err := Read(ctx, js, cfg)
	for i := range streams {
		if err == nil {
			err = streams[i].Update(ctx, js)
		}
	}
	return states, err
}

// Create creates missing streams and leaves others unchanged. Nodes may call it concurrently. It returns a
// *ConflictError if a stream has another retention or storage, and a *StrangerError if it belongs to another
// installation.
func Create(ctx context.Context, js jetstream.JetStream, cfg Config) (States, error) {
	var states States
	created := map[string]*time.Time{wire.StreamWork: &states.WorkCreated, wire.StreamReply: &states.ReplyCreated,
		wire.StreamStage: &states.StageCreated, wire.StreamFlow: &states.FlowCreated}
	for _, want := range cfg.all() {
		at, err := createStream(ctx, js, want)
		if err != nil {
			return States{}, err
		}
		if to := created[want.Name]; to != nil {
			*to = at
		}
	}
	return states, nil
}

// queue uses DiscardNew: a full stream refuses messages, so that nodes slow down, services keep their requests until
// the reply is stored, and nothing is lost.
func (c Config) queue(name, subject string, maxBytes int64) jetstream.StreamConfig {
	s := c.stream(name, subject, jetstream.WorkQueuePolicy, maxBytes)
	s.Discard = jetstream.DiscardNew
	return s
}

// flow keeps one message per subject. Services read it by subject, which permissions can restrict, and remove it with
// an empty message of short TTL, which needs only permission to publish. Roll-ups are not allowed: one could remove
// the messages of all other subjects.
func (c Config) flow() jetstream.StreamConfig {
	s := c.stream(wire.StreamFlow, wire.FlowPrefix+">", jetstream.LimitsPolicy, c.FlowMaxBytes)
	s.Discard = jetstream.DiscardNew
	s.MaxMsgsPerSubject = 1
	s.AllowDirect, s.AllowMsgTTL = true, true
	s.MaxAge = flowMaxAge
	return s
}

func (c Config) event() jetstream.StreamConfig {
	s := c.stream(wire.StreamEvent, wire.EventPrefix+">", jetstream.LimitsPolicy, c.EventMaxBytes)
	s.Discard = jetstream.DiscardOld
	s.MaxAge = c.EventMaxAge
	return s
}

func (c Config) stream(name, subject string, retention jetstream.RetentionPolicy, maxBytes int64,
) jetstream.StreamConfig {
	storage := jetstream.FileStorage
	if c.Memory {
		storage = jetstream.MemoryStorage
	}
	config := jetstream.StreamConfig{
		Name: name, Subjects: []string{subject}, Retention: retention, Storage: storage, Replicas: c.Replicas,
		MaxBytes: maxBytes, Duplicates: duplicateWindow,
	}
	if c.Installation != "" {
		config.Metadata = map[string]string{metaInstallation: c.Installation}
	}
	return config
}

// createStream returns the stream's creation time. If another node creates it first, that one is used.
func createStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (time.Time, error) {
	stream, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			stream, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("make stream %s: %w", want.Name, err)
	}
	have := stream.CachedInfo()
	if err := sameKind(have.Config, want); err != nil {
		return have.Created, err
	}
	if err := Leads(have.Cluster); err != nil {
		return time.Time{}, fmt.Errorf("check stream %s: %w", want.Name, err)
	}
	return have.Created, nil
}

func sameKind(have, want jetstream.StreamConfig) error {
	if of, is := have.Metadata[metaInstallation], want.Metadata[metaInstallation]; of != "" && is != "" && of != is {
		return &StrangerError{have: of, want: is}
	}
	if have.Retention != want.Retention {
		return &ConflictError{want.Name, "retention", have.Retention.String(), want.Retention.String()}
	}
	if have.Storage != want.Storage {
		return &ConflictError{want.Name, "storage", have.Storage.String(), want.Storage.String()}
	}
	if have.Sealed {
		return &ConflictError{want.Name, "sealed", "true", "false"}
	}
	return nil
}

// ConflictError means that an existing stream has a setting that JetStream cannot change.
type ConflictError struct {
	Stream, Setting, Have, Want string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("stream %s has %s %q where Tranche needs %q, which cannot be changed in place: "+
		"delete the stream (a node recreates it and issues its work again) or use another NATS account",
		e.Stream, e.Setting, e.Have, e.Want)
}

// StrangerError means that the streams belong to another database: each would take the other's replies.
type StrangerError struct{ have, want string }

func (e *StrangerError) Error() string {
	return fmt.Sprintf("the streams of this NATS account belong to another Tranche installation (database ID "+
		"%s; this one's is %s); sharing them would mix up replies; give each its own NATS account (docs/security.md, "+
		"Accounts), or, if the other database no longer exists, delete the streams %s, %s, %s, %s, %s and %s: "+
		"nats stream rm NAME", e.have, e.want, wire.StreamWork, wire.StreamReply, wire.StreamStage, wire.StreamFlow,
		wire.StreamEvent, wire.StreamDead)
}

// LossError means that a change was not made because it would lose messages.
type LossError struct{ Stream, Detail string }

func (e *LossError) Error() string { return e.Detail }

// Suspended is a snapshot of a flow's suspended chunks.
type Suspended struct {
	endpoint string
	ids      map[string]bool
}

// SuspendedOf returns the suspended chunks of a flow at one moment, none for other endpoints.
func SuspendedOf(ctx context.Context, js jetstream.JetStream, endpoint string) (Suspended, error) {
	s := Suspended{endpoint: endpoint, ids: map[string]bool{}}
	prefix := wire.FlowPrefix + endpoint + "."
	stream, err := js.Stream(ctx, wire.StreamFlow)
	if err != nil {
		return s, fmt.Errorf("check stream %s: %w", wire.StreamFlow, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+"*.0"))
	if err != nil {
		return s, fmt.Errorf("check stream %s: %w", wire.StreamFlow, err)
	}
	for subject := range info.State.Subjects {
		s.ids[strings.TrimSuffix(strings.TrimPrefix(subject, prefix), ".0")] = true
	}
	return s, nil
}

// Empty reports whether no chunk is suspended.
func (s Suspended) Empty() bool { return len(s.ids) == 0 }

// Of returns the state's subject of a node's chunk, of the later stage if it is between two, or "" if not suspended.
func (s Suspended) Of(slice uuid.UUID) string {
	if s.Empty() {
		return ""
	}
	for stage := wire.MaxStages - 1; stage >= 0; stage-- {
		if id := wire.NewFlowID(wire.Meta{Slice: slice}, s.endpoint, stage); s.ids[id.String()] {
			return wire.FlowPrefix + s.endpoint + "." + id.String() + ".0"
		}
	}
	return ""
}

// Waits is what a suspended chunk waits for.
type Waits struct {
	Sequence uint64   // of its state; it changes when the chunk moves on
	Asked    []string // endpoints with pending answers
}

// WaitsFor reads a suspended chunk's state from its subject. It returns zero if the chunk has moved on.
func WaitsFor(ctx context.Context, js jetstream.JetStream, subject string) (Waits, error) {
	stream, err := js.Stream(ctx, wire.StreamFlow)
	if err != nil {
		return Waits{}, fmt.Errorf("check stream %s: %w", wire.StreamFlow, err)
	}
	msg, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Waits{}, nil
	}
	if err != nil {
		return Waits{}, fmt.Errorf("read %s: %w", subject, err)
	}
	asked := msg.Header.Get(wire.HeaderFlowAsks)
	if asked == "" {
		return Waits{}, nil // expiring, or written by an older version
	}
	return Waits{Sequence: msg.Sequence, Asked: strings.Split(asked, ",")}, nil
}
