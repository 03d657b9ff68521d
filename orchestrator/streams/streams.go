package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Settings that JetStream refused are retried after a pause that doubles.
const (
	refusedFirst = 5 * time.Second
	refusedPause = 5 * time.Minute
)

// ErrNoNATS is returned when a decision needs the server, but NATS is not connected.
var ErrNoNATS = errors.New("NATS is not connected")

// single is the name of a cluster whose JetStream is not clustered, as a cluster name alone may be set.
type single struct{ name atomic.Pointer[string] }

func (c *Config) firstStreams() session.StreamValues { return StreamValues(&c.Streams) }

// StreamValues returns settings in the store's form.
func StreamValues(s *stream.Config) session.StreamValues {
	return session.StreamValues{Replicas: s.Replicas, WorkBytes: s.WorkMaxBytes, ReplyBytes: s.ReplyMaxBytes,
		StageBytes: s.StageMaxBytes, FlowBytes: s.FlowMaxBytes, EventBytes: s.EventMaxBytes, DeadBytes: s.DeadMaxBytes,
		EventAge: s.EventMaxAge}
}

// StreamConfig returns the configuration for settings, with all defaults except that of the replicas.
func StreamConfig(v *session.StreamValues) stream.Config {
	cfg := stream.Config{WorkMaxBytes: v.WorkBytes, ReplyMaxBytes: v.ReplyBytes, StageMaxBytes: v.StageBytes,
		FlowMaxBytes: v.FlowBytes, EventMaxBytes: v.EventBytes, DeadMaxBytes: v.DeadBytes, EventMaxAge: v.EventAge,
	}.WithDefaults()
	cfg.Replicas = v.Replicas
	return cfg
}

func (k *Keeper) streamConfig(set *session.StreamSettings, v *session.StreamValues) (stream.Config, error) {
	cfg := StreamConfig(v)
	cfg.Memory, cfg.Installation = k.cfg.Streams.Memory, set.Installation.String()
	if v.Replicas != 0 {
		return cfg, nil
	}
	// The default depends on the current server, and never removes a replica.
	cfg.Replicas, cfg.MoreReplicas = stream.UsualReplicas(k.node.NC), true
	if name := k.single.name.Load(); name != nil && *name == k.node.NC.ConnectedClusterName() {
		cfg.Replicas = stream.DefaultReplicas
	}
	if !k.node.NC.IsConnected() {
		return cfg, ErrNoNATS
	}
	return cfg, nil
}

// createStreams creates missing streams. While JetStream refuses the settings, it uses those last applied.
func (k *Keeper) createStreams(ctx context.Context) (stream.States, error) {
	set, err := session.New(k.node.Store).StreamSettings(ctx, k.cfg.firstStreams())
	if err != nil {
		return stream.States{}, err
	}
	k.differing.Do(func() { k.logDiffering(&set) })
	states, err := k.createAs(ctx, &set, &set.StreamValues)
	if set.Applied != nil && *set.Applied != set.StreamValues && refused(err) {
		return k.createAs(ctx, &set, set.Applied)
	}
	return states, err
}

func (k *Keeper) createAs(ctx context.Context, set *session.StreamSettings, v *session.StreamValues,
) (stream.States, error) {
	cfg, err := k.streamConfig(set, v)
	if err != nil {
		return stream.States{}, err
	}
	asked := time.Now()
	states, err := stream.Create(ctx, k.node.JS, cfg)
	k.stalled.note(asked, err)
	if v.Replicas == 0 && cfg.Replicas > stream.DefaultReplicas && stream.NotClustered(err) {
		name := k.node.NC.ConnectedClusterName()
		k.single.name.Store(&name)
		k.node.Look()
	}
	return states, err
}

func (k *Keeper) logDiffering(set *session.StreamSettings) {
	filled := StreamConfig(&set.StreamValues)
	first, are := k.cfg.firstStreams(), StreamValues(&filled)
	if differs := first.Against(&are); len(differs) > 0 {
		k.node.Log.Warn("the streams differ from this node's flags: their settings are kept in the database, for all nodes, "+
			"and those of a node count only when there are none yet; change them with: tranche streams set",
			zap.Strings("differing", differs))
	}
}

type refusal struct {
	revision int64
	until    time.Time
	pauses   backoff.Exponential
}

// Tending is the leader task that applies the settings. JetStream knows no lease, but the next leader would do the
// same; the outcome is saved under the lease.
func (k *Keeper) Tending() func(context.Context, workqueue.Lease) (time.Duration, error) {
	var led workqueue.Lease
	var last refusal
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if lease != led {
			led, last = lease, refusal{}
		}
		if !k.node.NC.IsConnected() {
			return k.cfg.Reconcile, nil
		}
		ctx, cancel := context.WithTimeout(ctx, core.ReconcileTimeout)
		defer cancel()
		set, err := session.New(k.node.Store).StreamSettings(ctx, k.cfg.firstStreams())
		if err != nil || last.revision == set.Revision && time.Now().Before(last.until) {
			return k.cfg.Reconcile, err
		}
		err = k.updateStreams(ctx, &set)
		switch {
		case refused(err):
			if last.revision != set.Revision {
				last = refusal{revision: set.Revision, pauses: backoff.Exponential{First: refusedFirst, Longest: refusedPause}}
				k.node.Log.Error("the streams cannot be made with their settings; see: tranche streams", zap.Error(err))
			}
			pause := last.pauses.Next()
			last.until = time.Now().Add(pause)
			return k.cfg.Reconcile, session.New(k.node.Store).StreamsRefused(ctx, lease, &set, err.Error(), pause)
		case err != nil:
			return k.cfg.Reconcile, err
		}
		last = refusal{}
		if set.AppliedRevision == set.Revision && set.Trouble == "" {
			return k.node.Slower(k.cfg.Reconcile), nil
		}
		return k.cfg.Reconcile, session.New(k.node.Store).StreamsApplied(ctx, lease, &set)
	}
}

// updateStreams applies the settings to the existing streams. A failure does not hold up the rest.
func (k *Keeper) updateStreams(ctx context.Context, set *session.StreamSettings) error {
	cfg, err := k.streamConfig(set, &set.StreamValues)
	if err != nil {
		return err
	}
	streams, err := stream.Read(ctx, k.node.JS, cfg)
	if err != nil {
		return err
	}
	var failed []error
	for i := range streams {
		s := &streams[i]
		differs := s.Differs()
		if s.Have == nil { // it will be created within half a second
			return fmt.Errorf("stream %s: %w", s.Want.Name, jetstream.ErrStreamNotFound)
		}
		if len(differs) == 0 {
			continue
		}
		if err := s.Update(ctx, k.node.JS); err != nil {
			failed = append(failed, err)
			continue
		}
		k.node.Log.Info("stream set", zap.String("stream", s.Want.Name), zap.Strings("was", differs))
	}
	return joint(failed)
}

// joint combines the errors of several streams, mostly alike, into one: a refusal if there is one.
func joint(failed []error) error {
	if len(failed) == 0 {
		return nil
	}
	first := failed[max(slices.IndexFunc(failed, refused), 0)]
	if more := len(failed) - 1; more > 0 {
		return fmt.Errorf("%w (and %d more streams)", first, more)
	}
	return first
}

// refused reports whether the settings cannot be applied unless something else changes.
func refused(err error) bool {
	if conflict, ok := errors.AsType[*stream.ConflictError](err); ok {
		return Keeps(conflict.Stream)
	}
	if _, ok := errors.AsType[*stream.LossError](err); ok {
		return true
	}
	return stream.Refused(err)
}

// Keeps reports whether a stream has messages stored nowhere else. Other streams are replaced when unusable.
func Keeps(stream string) bool {
	carries := sliceStreams()
	return !slices.Contains(carries[:], stream)
}

// stalledAfter is how long JetStream may be silent unreported. A server that transfers leaderships is silent for
// less.
const stalledAfter = 3 * time.Second

// stalling is for how long the streams have not answered over a working connection: their servers lack a quorum or a
// leader.
type stalling struct {
	mu    sync.Mutex
	since time.Time // zero: they answer
	last  string    // error of the last check
}

// note takes the result of a check. An error from elsewhere changes nothing.
func (m *stalling) note(asked time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, answered := errors.AsType[*jetstream.APIError](err)
	switch {
	case stream.Unanswered(err):
		m.last = core.Readable(err)
		if m.since.IsZero() {
			m.since = asked
		}
	case err == nil, answered, refused(err):
		m.since = time.Time{}
	}
}

// StalledStreams is the part of a heartbeat on streams that do not answer; explanations and health read it.
type StalledStreams struct {
	Seconds float64 `json:"seconds"`
	Why     string  `json:"why"`
}

func (m *stalling) pulse() *StalledStreams {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since.IsZero() || time.Since(m.since) < stalledAfter {
		return nil
	}
	return &StalledStreams{time.Since(m.since).Seconds(), m.last}
}
