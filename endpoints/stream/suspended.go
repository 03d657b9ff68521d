package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
)

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
