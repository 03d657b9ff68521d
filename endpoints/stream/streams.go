// Package stream is what nodes and services need of JetStream: the streams and consumers of the protocol, made and
// brought to date ([Ensure], [EnsureConsumer] and their like), whether they still take and give messages ([Probe],
// [Incarnation]), which permissions a connection is denied ([Permissions]), and what flows keep ([SuspendedOf]).
//
// It knows subjects and settings, and of messages no more than their headers. All of it is safe for concurrent use, and
// every question to the server has a time within which it ends.
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
	// Events are kept.
	DefaultEventMaxAge   = 7 * 24 * time.Hour
	DefaultStageMaxBytes = 512 << 20
	DefaultFlowMaxBytes  = 512 << 20
	DefaultDeadMaxBytes  = 64 << 20
)

// flowMaxAge is how long the state of a suspended chunk is kept at most. Its own time to live is shorter.
const flowMaxAge = 24 * time.Hour

// duplicateWindow is how long a Nats-Msg-Id is remembered.
const duplicateWindow = 2 * time.Minute

// Config sizes the streams. A zero field means its default.
type Config struct {
	Replicas int // 1, 3 or 5
	// MoreReplicas leaves a stream the copies that it has beyond Replicas.
	MoreReplicas bool
	// Bytes on disk. At a full work or reply stream publishers wait; of events the oldest go.
	WorkMaxBytes, ReplyMaxBytes, EventMaxBytes int64
	EventMaxAge                                time.Duration
	// Bytes of replies on their way back into flows, of the state of suspended chunks, and of dead letters that no node
	// has taken in yet. At a full one services wait.
	StageMaxBytes, FlowMaxBytes, DeadMaxBytes int64
	// Memory keeps the streams in memory: for tests.
	Memory bool
	// Installation is the database whose streams these are, as text; empty: any one's.
	Installation string
}

// metaInstallation is the key of a stream's metadata that says whose it is.
const metaInstallation = "tranche_installation"

// WithDefaults fills in what is zero.
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

// States says since when the streams exist. A later time than one remembered means that the stream was recreated
// and what was in it is lost.
type States struct {
	WorkCreated, ReplyCreated, StageCreated, FlowCreated time.Time
}

// all are the streams as cfg wants them.
func (c Config) all() []jetstream.StreamConfig {
	c = c.WithDefaults()
	return []jetstream.StreamConfig{c.work(), c.reply(), c.stage(), c.flow(), c.event(), c.dead()}
}

// Bytes is what the streams take on each server that keeps them, once they are full.
func (c Config) Bytes() (all int64) {
	for _, stream := range c.all() {
		all += stream.MaxBytes
	}
	return all
}

// Ensure creates the streams, or brings existing ones to cfg. A stream with another retention or storage is a
// *ConflictError. Nodes only create them, by [Create]: the one that leads does the rest.
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

// Create creates the streams that are missing and leaves the others as they are. It may be called by many nodes
// at once. A stream with another retention or storage is a *ConflictError, one of another installation a
// *StrangerError.
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

// work has DiscardNew: a full stream refuses a request, so that the node slows down instead of losing the oldest.
// AllowMsgTTL lets a node give a request the time to live of its slice.
func (c Config) work() jetstream.StreamConfig {
	s := c.stream(wire.StreamWork, wire.WorkPrefix+"*", jetstream.WorkQueuePolicy, c.WorkMaxBytes)
	s.Discard = jetstream.DiscardNew
	s.AllowMsgTTL = true
	return s
}

// reply has DiscardNew for the same reason: a service keeps its request until its reply is taken.
func (c Config) reply() jetstream.StreamConfig {
	s := c.stream(wire.StreamReply, wire.ReplyPrefix+"*", jetstream.WorkQueuePolicy, c.ReplyMaxBytes)
	s.Discard = jetstream.DiscardNew
	return s
}

// stage has DiscardNew, too: a service keeps its request until its reply is taken.
func (c Config) stage() jetstream.StreamConfig {
	s := c.stream(wire.StreamStage, wire.StagePrefix+">", jetstream.WorkQueuePolicy, c.StageMaxBytes)
	s.Discard = jetstream.DiscardNew
	return s
}

// flow keeps one message a subject. A service reads it by its subject, which permissions can be given for, and removes
// it by an empty one with a short time to live, which needs no right but to publish. Roll-ups are not allowed: by one
// of them, whoever may publish to any subject would remove what is on all others.
func (c Config) flow() jetstream.StreamConfig {
	s := c.stream(wire.StreamFlow, wire.FlowPrefix+">", jetstream.LimitsPolicy, c.FlowMaxBytes)
	s.Discard = jetstream.DiscardNew
	s.MaxMsgsPerSubject = 1
	s.AllowDirect, s.AllowMsgTTL = true, true
	s.MaxAge = flowMaxAge
	return s
}

func (c Config) dead() jetstream.StreamConfig {
	s := c.stream(wire.StreamDead, wire.DeadPrefix+"*", jetstream.WorkQueuePolicy, c.DeadMaxBytes)
	s.Discard = jetstream.DiscardNew
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

// createStream returns the time of the stream's making. Whoever loses a race to create it takes it as it is.
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
		return time.Time{}, fmt.Errorf("look at stream %s: %w", want.Name, err)
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

// ConflictError is returned when a stream of ours exists with a setting that JetStream cannot change.
type ConflictError struct {
	Stream, Setting, Have, Want string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("stream %s has %s %q where Tranche needs %q, which cannot be changed in place: "+
		"delete the stream (a node recreates it and issues its work again) or use another NATS account",
		e.Stream, e.Setting, e.Have, e.Want)
}

// StrangerError is returned when the streams are those of another database: each would take the other's replies.
type StrangerError struct{ have, want string }

func (e *StrangerError) Error() string {
	return fmt.Sprintf("the streams of this NATS account belong to another Tranche installation (database ID "+
		"%s; this one's is %s); sharing them would mix up replies; give each its own NATS account (docs/security.md, "+
		"Accounts), or, if the other database no longer exists, delete the streams %s, %s, %s, %s, %s and %s: "+
		"nats stream rm NAME", e.have, e.want, wire.StreamWork, wire.StreamReply, wire.StreamStage, wire.StreamFlow,
		wire.StreamEvent, wire.StreamDead)
}

// LossError is returned for a change of a stream that would lose what it holds. Nothing has been changed.
type LossError struct{ Stream, Detail string }

func (e *LossError) Error() string { return e.Detail }

// Suspended is the chunks of a flow that lie suspended at one moment, by the ids of their flows.
type Suspended struct {
	endpoint string
	ids      map[string]bool
}

// SuspendedOf reads which chunks of a flow are suspended, all as of one moment. An endpoint that is no flow has none.
func SuspendedOf(ctx context.Context, js jetstream.JetStream, endpoint string) (Suspended, error) {
	s := Suspended{endpoint: endpoint, ids: map[string]bool{}}
	prefix := wire.FlowPrefix + endpoint + "."
	stream, err := js.Stream(ctx, wire.StreamFlow)
	if err != nil {
		return s, fmt.Errorf("look at stream %s: %w", wire.StreamFlow, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+"*.0"))
	if err != nil {
		return s, fmt.Errorf("look at stream %s: %w", wire.StreamFlow, err)
	}
	for subject := range info.State.Subjects {
		s.ids[strings.TrimSuffix(strings.TrimPrefix(subject, prefix), ".0")] = true
	}
	return s, nil
}

// Empty reports whether no chunk is suspended.
func (s Suspended) Empty() bool { return len(s.ids) == 0 }

// Of returns the subject of the state of the chunk that a node's request asked for, or "" when it is not suspended. Of
// a chunk that is between two stages it returns the later one.
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

// Waits is for what a suspended chunk waits.
type Waits struct {
	Sequence uint64   // of its state: another one says that it has gone on
	Asked    []string // the endpoints whose answers it waits for
}

// WaitsFor reads the state of a suspended chunk, from its subject. It is zero when the chunk has gone on.
func WaitsFor(ctx context.Context, js jetstream.JetStream, subject string) (Waits, error) {
	stream, err := js.Stream(ctx, wire.StreamFlow)
	if err != nil {
		return Waits{}, fmt.Errorf("look at stream %s: %w", wire.StreamFlow, err)
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
		return Waits{}, nil // it is about to go, or a version wrote it that did not say
	}
	return Waits{Sequence: msg.Sequence, Asked: strings.Split(asked, ",")}, nil
}
