package sweep

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// stuckLaps is how many laps a suspended chunk has to stay where it is until it counts as stuck.
const stuckLaps = 3

// suspension is what was seen of a suspended chunk. It goes on when a reply comes to what its flow has asked, and is
// stuck for good when the question or the answer was lost.
//
// A question or an answer is always a message: what brought the chunk to its present stage, in the stage stream (or the
// work stream), is acknowledged after its questions were stored in the work stream; a question is acknowledged after
// its answer was stored in the stage stream; an answer is acknowledged after it was parked, or after the stage has
// ended, which takes the state away. So each message of the chunk makes a step forward, or ends, when it is
// acknowledged. A lap is over when the consumers of the flow and of all whom it has asked have acknowledged what was
// there at its beginning: what brought it, then questions, then answers. A chunk whose state is the same one after
// three laps has no message left. An endpoint that was asked may be a flow itself, whose chunks lie suspended in
// between: laps begin only while it has none.
type suspension struct {
	state    string // subject
	sequence uint64
	asked    []string
	laps     int
	begun    bool   // a lap
	work     uint64 // the last sequences at its beginning
	stage    uint64
}

// suspensions looks at suspended chunks, each stream and consumer once.
type suspensions struct {
	js       jetstream.JetStream
	of       map[string]stream.Suspended
	progress map[string]*progress
	last     map[string]uint64 // sequences of streams
}

// progress is how far a consumer is; nil: it is not there.
type progress struct{ info *jetstream.ConsumerInfo }

func (p *progress) passed(sequence uint64) bool {
	return p.info != nil && (p.info.AckFloor.Stream >= sequence || p.info.NumPending == 0 && p.info.NumAckPending == 0)
}

// stateOf returns the subject of the state of a chunk, or "" when it is not suspended.
func (f *suspensions) stateOf(ctx context.Context, endpoint string, slice uuid.UUID) (string, error) {
	s, err := f.suspended(ctx, endpoint)
	if err != nil {
		return "", err
	}
	return s.Of(slice), nil
}

func (f *suspensions) suspended(ctx context.Context, endpoint string) (s stream.Suspended, err error) {
	s, known := f.of[endpoint]
	if !known {
		if s, err = stream.SuspendedOf(ctx, f.js, endpoint); err == nil {
			f.of[endpoint] = s
		}
	}
	return s, err
}

// stuck takes the chunk a step further on its laps, and reports whether it has made all of them without having moved.
func (f *suspensions) stuck(ctx context.Context, endpoint, state string, was *suspension) (bool, error) {
	waits, err := stream.WaitsFor(ctx, f.js, state)
	if err != nil {
		return false, err
	}
	if waits.Sequence == 0 || was.state != state || was.sequence != waits.Sequence {
		*was = suspension{state: state, sequence: waits.Sequence, asked: waits.Asked}
		return false, f.begin(ctx, was)
	}
	if was.laps >= stuckLaps {
		return true, nil // its state was read after the last lap was over
	}
	over, err := f.over(ctx, endpoint, was)
	if err != nil || !over {
		return false, err
	}
	if was.begun {
		was.laps++
	}
	return false, f.begin(ctx, was)
}

// begin begins a lap. While one of those asked has suspended chunks of its own, none begins.
func (f *suspensions) begin(ctx context.Context, s *suspension) error {
	s.begun = false
	for _, name := range s.asked {
		nested, err := f.suspended(ctx, name)
		if err != nil {
			return err
		}
		if !nested.Empty() {
			s.laps = 0
			return nil
		}
	}
	if f.last == nil {
		last := map[string]uint64{}
		for _, name := range []string{wire.StreamWork, wire.StreamStage} {
			stream, err := f.js.Stream(ctx, name)
			if err != nil {
				return fmt.Errorf("look at stream %s: %w", name, err)
			}
			last[name] = stream.CachedInfo().State.LastSeq
		}
		f.last = last
	}
	s.begun, s.work, s.stage = true, f.last[wire.StreamWork], f.last[wire.StreamStage]
	return nil
}

// over reports whether all of whom the chunk may be waiting for are done with what there was when the lap began.
func (f *suspensions) over(ctx context.Context, endpoint string, s *suspension) (bool, error) {
	stage, err := f.consumer(ctx, wire.StreamStage, endpoint)
	if err != nil || !stage.passed(s.stage) {
		return false, err
	}
	for _, name := range s.asked {
		work, err := f.consumer(ctx, wire.StreamWork, name)
		if err != nil || !work.passed(s.work) {
			return false, err
		}
	}
	return true, nil
}

func (f *suspensions) consumer(ctx context.Context, stream, endpoint string) (*progress, error) {
	key := stream + " " + endpoint
	if p := f.progress[key]; p != nil {
		return p, nil
	}
	consumer, err := f.js.Consumer(ctx, stream, wire.ConsumerName(endpoint))
	p := &progress{}
	switch {
	case err == nil:
		p.info = consumer.CachedInfo()
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, fmt.Errorf("look at consumer %s of %s: %w", endpoint, stream, err)
	}
	f.progress[key] = p
	return p, nil
}
