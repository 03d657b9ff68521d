package conformance

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// The acknowledgements of JetStream.
const (
	ackDone    = "+ACK"
	ackBack    = "-NAK"
	ackWorking = "+WPI"
	ackRemove  = "+TERM"
)

// acknowledgement is one that the service sent, for the request with this sequence.
type acknowledgement struct {
	kind     string
	text     string // all of it
	sequence uint64
	stored   string // when the stream took the request, as the server says it
}

// journal notes what the service sends: replies as they are published, taken by the stream or not, and
// acknowledgements. It is safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	changed chan struct{}
	replies []*message
	acks    []acknowledgement
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

// listen notes all that comes until ctx ends.
func (j *journal) listen(ctx context.Context, from <-chan *nats.Msg) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-from:
			j.note(msg)
		}
	}
}

func (j *journal) note(msg *nats.Msg) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if strings.HasPrefix(msg.Subject, "$JS.ACK.") {
		if ack, ok := readAcknowledgement(msg); ok {
			j.acks = append(j.acks, ack)
		}
	} else {
		j.replies = append(j.replies, readMessage(msg))
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// until returns when done is true, or ctx's error. done is called with the journal locked, after each change.
func (j *journal) until(ctx context.Context, done func() bool) error {
	for {
		j.mu.Lock()
		ok, changed := done(), j.changed
		j.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// of returns the messages of a slice. Of two with one Nats-Msg-Id the stream takes the first, and so does it. The
// journal is locked.
func (j *journal) of(slice string) []*message {
	var found []*message
	seen := map[string]bool{}
	for _, m := range j.replies {
		if m.header.Get(wire.HeaderSlice) != slice || m.id() != "" && seen[m.id()] {
			continue
		}
		seen[m.id()] = true
		found = append(found, m)
	}
	return found
}

// look calls f with the journal locked.
func (j *journal) look(f func() bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return f()
}

// settled returns the first acknowledgement of a request that lets it go. The journal is locked.
func (j *journal) settled(sequence uint64) (acknowledgement, bool) {
	for _, ack := range j.acks {
		if ack.sequence == sequence && ack.kind != ackWorking {
			return ack, true
		}
	}
	return acknowledgement{}, false
}

// count returns how many acknowledgements of a kind a request got. It locks the journal.
func (j *journal) count(sequence uint64, kind string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, ack := range j.acks {
		if ack.sequence == sequence && ack.kind == kind {
			n++
		}
	}
	return n
}

// readAcknowledgement reads $JS.ACK.[domain.account.]stream.consumer.deliveries.sequence.sequence.time.pending[.token]
func readAcknowledgement(msg *nats.Msg) (acknowledgement, bool) {
	tokens := strings.Split(msg.Subject, ".")
	stream := 2
	if len(tokens) > 9 {
		stream = 4
	}
	if len(tokens) < stream+7 {
		return acknowledgement{}, false
	}
	sequence, err := strconv.ParseUint(tokens[stream+3], 10, 64)
	if err != nil {
		return acknowledgement{}, false
	}
	text := string(msg.Data)
	kind, _, _ := strings.Cut(text, " ")
	if kind == "" {
		kind = ackDone // an empty one counts as such
	}
	return acknowledgement{kind: kind, text: text, sequence: sequence, stored: tokens[stream+5]}, true
}
