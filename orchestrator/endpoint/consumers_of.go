package endpoint

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
)

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
