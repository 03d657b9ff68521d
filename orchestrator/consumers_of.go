package orchestrator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// consumersOf is one stream and its consumers, as of about one moment.
type consumersOf struct {
	name      string
	stream    jetstream.Stream
	made      time.Time
	first     uint64            // sequence
	held      map[string]uint64 // messages in the stream, by the name of the consumer that they are for
	consumers map[string]*jetstream.ConsumerInfo
}

// look reads the consumers of ours that a stream has. Its messages are counted first: those that come in between are
// pending then, and do not look like left ones.
func (e *consumers) look(ctx context.Context, name, subjects string, consumerOf func(subject string) string,
) (consumersOf, error) {
	of := consumersOf{name: name, held: map[string]uint64{}}
	stream, err := e.node.js.Stream(ctx, name)
	if err != nil {
		return of, fmt.Errorf("look at stream %s: %w", name, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return of, fmt.Errorf("look at stream %s: %w", name, err)
	}
	of.stream, of.made, of.first = stream, info.Created, info.State.FirstSeq
	for subject, count := range info.State.Subjects {
		of.held[consumerOf(subject)] += count
	}
	of.consumers, err = consumersIn(ctx, stream, consumerOf)
	return of, err
}

// consumersIn reads the consumers of ours that a stream has, by their names. With an error it returns what it has read.
func consumersIn(ctx context.Context, stream jetstream.Stream, consumerOf func(subject string) string,
) (map[string]*jetstream.ConsumerInfo, error) {
	of := map[string]*jetstream.ConsumerInfo{}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if info.Config.Durable == info.Name && wire.ValidateName(info.Name) == nil &&
			consumerOf(info.Config.FilterSubject) == info.Name {
			of[info.Name] = info
		}
	}
	if err := list.Err(); err != nil {
		return of, fmt.Errorf("list the consumers of stream %s: %w", stream.CachedInfo().Config.Name, err)
	}
	return of, nil
}

// workConsumer and stageConsumer return the name of the consumer that a subject is for.
func workConsumer(subject string) string {
	return strings.TrimPrefix(subject, wire.WorkSubject(""))
}

func stageConsumer(subject string) string {
	prefix, _ := strings.CutSuffix(wire.StageSubjects(""), ".>")
	name, _, _ := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
	return name
}
