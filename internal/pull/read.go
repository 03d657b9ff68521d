package pull

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Source is a consumer, and how much to read ahead.
type Source struct {
	JS               jetstream.JetStream
	Stream, Consumer string
	Made             time.Time // when the consumer was created
	Messages, Bytes  int       // limits; bytes at least twice the largest message
	// Small selects messages that overtake others: they are passed on concurrently, one at a time. May be nil.
	Small func(jetstream.Msg) bool
}

// Read passes each message of a consumer to each, one at a time (see [Source.Small]), until ctx ends. Then it stops
// requesting, passes on what still arrives, and returns nil. It ends the same way, with an error, when the consumer
// must be looked up again.
func Read(ctx context.Context, source Source, each func(jetstream.Msg)) error {
	r := &reader{source: source, changed: make(chan struct{}, 1), all: newLane(), small: newLane()}
	puller := New(Config{JS: source.JS, Stream: source.Stream, Consumer: source.Consumer, Take: r.take, Late: r.owe})
	var giving sync.WaitGroup
	for _, l := range []*lane{r.all, r.small} {
		giving.Go(func() { r.give(l, each) })
	}
	err := r.pull(ctx, puller)
	puller.Close()
	r.end()
	giving.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // after ctx ended, the last pull's error is irrelevant
	}
	return err
}

type reader struct {
	source  Source
	changed chan struct{} // there may be room

	mu         sync.Mutex
	all, small *lane
	held       amount // in the lanes and with the owner
	late       amount
	ended      bool
}

type lane struct {
	queue []jetstream.Msg
	came  chan struct{} // there may be a message
}

func newLane() *lane { return &lane{came: make(chan struct{}, 1)} }

func (r *reader) take(msg jetstream.Msg, _ time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	to := r.all
	if r.source.Small != nil && r.source.Small(msg) {
		to = r.small
	}
	to.queue = append(to.queue, msg)
	r.held.messages++
	r.held.bytes += len(msg.Data())
	poke(to.came)
}

func (r *reader) owe(messages, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late.messages += messages
	r.late.bytes += bytes
	poke(r.changed)
}

func (r *reader) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	poke(r.all.came)
	poke(r.small.came)
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (r *reader) give(from *lane, each func(jetstream.Msg)) {
	for {
		r.mu.Lock()
		queue, ended := from.queue, r.ended
		from.queue = nil
		r.mu.Unlock()
		for i, msg := range queue {
			each(msg)
			queue[i] = nil // may be large
			r.release(len(msg.Data()))
		}
		if len(queue) == 0 {
			if ended {
				return
			}
			<-from.came
		}
	}
}

func (r *reader) release(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held.messages--
	r.held.bytes -= bytes
	poke(r.changed)
}

// room returns what may be requested: nothing while more than half is in flight or waiting.
func (r *reader) room() (messages, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	messages = r.source.Messages - r.held.messages - r.late.messages
	bytes = r.source.Bytes - r.held.bytes - r.late.bytes
	if 2*messages < r.source.Messages || 2*bytes < r.source.Bytes {
		return 0, 0
	}
	return messages, bytes
}

// pull requests messages until ctx ends, or a pull ends for a reason other than time or size.
func (r *reader) pull(ctx context.Context, puller *Puller) error {
	reconnected := puller.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer puller.nc.RemoveStatusListener(reconnected)
	for {
		messages, bytes := r.room()
		if messages == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-r.changed:
			}
			continue
		}
		open, err := puller.Open(r.source.Made, messages, bytes)
		if err != nil {
			return err
		}
		select {
		case <-open.Over():
			err = open.Err()
		case <-ctx.Done():
			open.Settle()
			return nil
		case <-reconnected: // the pull was lost with the connection
			open.Abandon()
		}
		if err != nil {
			return err
		}
	}
}

// message implements jetstream.Msg for a pulled message.
type message struct{ *nats.Msg }

func (m message) Data() []byte         { return m.Msg.Data }
func (m message) Headers() nats.Header { return m.Header }
func (m message) Subject() string      { return m.Msg.Subject }
func (m message) Reply() string        { return m.Msg.Reply }

func (m message) Metadata() (*jetstream.MsgMetadata, error) {
	meta, err := m.Msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", jetstream.ErrNotJSMessage, err)
	}
	return &jetstream.MsgMetadata{
		Sequence:     jetstream.SequencePair{Consumer: meta.Sequence.Consumer, Stream: meta.Sequence.Stream},
		NumDelivered: meta.NumDelivered, NumPending: meta.NumPending, Timestamp: meta.Timestamp,
		Stream: meta.Stream, Consumer: meta.Consumer, Domain: meta.Domain,
	}, nil
}

func (m message) Ack() error                             { return m.Msg.Ack() }
func (m message) DoubleAck(ctx context.Context) error    { return m.AckSync(nats.Context(ctx)) }
func (m message) Nak() error                             { return m.Msg.Nak() }
func (m message) NakWithDelay(delay time.Duration) error { return m.Msg.NakWithDelay(delay) }
func (m message) InProgress() error                      { return m.Msg.InProgress() }
func (m message) Term() error                            { return m.Msg.Term() }
func (m message) TermWithReason(reason string) error     { return m.Respond([]byte("+TERM " + reason)) }
