// Package pull reads a durable JetStream consumer by pull requests bounded in messages and bytes, without losing
// messages.
//
// When the server has assigned all messages of a pull it says so immediately (409, with the remainder), but a
// replicated consumer sends them only after the quorum knows of the delivery. A client that stops listening at the
// 409, like jetstream's Fetch, loses them for an AckWait. So each pull has a separate inbox that outlives it:
//
//	open ──▶ late ──▶ lingering ──▶ closed
//
// A pull is open until the server ends it or the owner abandons it. It is late while the number of messages still to
// come is known; these count against the owner's room. It lingers, without counting, if that is unknown or took too
// long. It is closed once all have come. So what is in flight is bounded by the owner's room, or twice that after a
// fault.
//
// nats.go's Consumer.Messages loses nothing either, but its byte limit is per pull: with three replicas it held three
// times as much (51 messages where 17 were allowed, nats.go 1.55), and it cannot adapt to less room.
//
// It does not interpret messages, and does not check or look up the consumer. It is safe for concurrent use.
package pull

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrSilent ends an open pull without heartbeats from the server.
var ErrSilent = errors.New("the server gives no heartbeat for an open pull")

// errAbandoned ends a pull for those who still listen after Abandon.
var errAbandoned = errors.New("the pull was abandoned")

type state int

const (
	open state = iota
	late
	lingers
	closed
)

// amount is a number of messages, and their bytes as the server counts them.
type amount struct{ messages, bytes int }

// Pull is a pull request.
type Pull struct {
	puller       *Puller
	made         time.Time
	asked        amount
	sub          *nats.Subscription
	over         chan struct{} // closed at the end of the open state
	counted      chan struct{} // closed when no message counts as late
	unsubscribed chan struct{}

	mu       sync.Mutex
	state    state
	err      error // the reason, once over
	silent   int   // heartbeat checks since the last message
	came     amount
	owed     amount      // late messages
	left     int         // messages that the server will not send
	silence  *time.Timer // ends it while it is open
	patience *time.Timer // ends the state after that
}

func (p *Pull) listen(inbox string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	sub, err := p.puller.nc.Subscribe(inbox, p.on)
	if err != nil {
		return err
	}
	// The pull itself bounds what arrives; a client-side limit would drop messages.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return errors.Join(err, sub.Unsubscribe())
	}
	sub.SetClosedHandler(func(string) { close(p.unsubscribed) })
	p.sub = sub
	p.silence = time.AfterFunc(p.puller.config.Heartbeat, p.listened)
	p.puller.add(p)
	return nil
}

// Over is closed when the pull ends. Messages may still arrive.
func (p *Pull) Over() <-chan struct{} { return p.over }

// Err returns the cause of the end; nil for time or size, and while open.
func (p *Pull) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Settle returns when the pull ends, or nothing has arrived for a while. Call it before Abandon when stopping, or
// messages just being sent are lost until their AckWait expires.
func (p *Pull) Settle() {
	for range settles {
		before := p.messagesCame()
		select {
		case <-p.over:
			return
		case <-time.After(Settling):
		}
		if p.messagesCame() == before {
			return
		}
	}
}

func (p *Pull) messagesCame() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.came.messages
}

// Abandon ends the pull early. What arrives anyway is accepted for a while.
func (p *Pull) Abandon() { p.end(errAbandoned, nil) }

func (p *Pull) on(msg *nats.Msg) {
	status := statusOf(msg)
	switch {
	case status == nil:
		p.puller.take(msg, p.made)
		p.count(msg.Size())
	case status.code == "100": // a heartbeat
		p.mu.Lock()
		p.silent = 0
		p.mu.Unlock()
	default:
		p.end(status.err(), status)
	}
}

// listened checks once per heartbeat interval whether one came, and ends the pull after several misses. It counts
// checks instead of time, because a stalled process did not listen either.
func (p *Pull) listened() {
	p.mu.Lock()
	p.silent++
	if waiting, _, err := p.sub.Pending(); err == nil && waiting > 0 {
		p.silent = 0
	}
	dead := p.silent > missedBeats
	if p.state == open && !dead {
		p.silence.Reset(p.puller.config.Heartbeat)
	}
	p.mu.Unlock()
	if dead {
		p.end(ErrSilent, nil)
	}
}

func (p *Pull) count(size int) {
	p.mu.Lock()
	p.silent = 0
	p.came.messages++
	p.came.bytes += size
	if p.state == late {
		p.owe(amount{max(p.owed.messages-1, 0), max(p.owed.bytes-size, 0)})
	}
	then := func() {}
	if p.whole() {
		then = p.shut() // even if open: the server sends no status when both limits are met
	}
	p.mu.Unlock()
	then()
}

// whole reports whether nothing more can arrive. The caller holds mu.
func (p *Pull) whole() bool {
	return p.came.messages >= p.asked.messages-p.left || p.came.bytes >= p.asked.bytes
}

func (p *Pull) owe(now amount) {
	if now != p.owed {
		p.puller.config.Late(now.messages-p.owed.messages, now.bytes-p.owed.bytes)
	}
	p.owed = now
}

// end ends the pull for its owner, and notes what the server says is still to come.
func (p *Pull) end(err error, status *status) {
	p.mu.Lock()
	known := status != nil && status.known
	if known {
		p.left = status.left.messages
	}
	then := func() {}
	first := p.state == open
	if first {
		p.err = err
	}
	switch {
	case p.whole():
		then = p.shut()
	case first && known:
		p.becomeLate(p.asked.bytes - status.left.bytes - p.came.bytes)
	case first:
		then = p.becomeLingering()
	}
	p.mu.Unlock()
	then()
}

// becomeLate waits for promised messages. The caller holds mu.
func (p *Pull) becomeLate(bytes int) {
	p.owe(amount{p.asked.messages - p.left - p.came.messages, max(bytes, 0)})
	p.become(late)
	p.patience = time.AfterFunc(p.puller.config.Timeout, func() {
		p.mu.Lock()
		then := func() {}
		if p.state == late {
			then = p.becomeLingering()
		}
		p.mu.Unlock()
		then()
	})
}

// becomeLingering stops counting. The caller holds mu; the returned function must be called without it.
func (p *Pull) becomeLingering() (then func()) {
	p.owe(amount{})
	p.become(lingers)
	p.patience = time.AfterFunc(lingering, p.close)
	return func() {
		if before := p.puller.linger(p); before != nil {
			before.close()
		}
	}
}

func (p *Pull) become(next state) {
	if p.patience != nil {
		p.patience.Stop()
	}
	if p.state == open {
		p.silence.Stop()
		close(p.over)
	}
	if p.state < lingers && next >= lingers {
		close(p.counted)
	}
	p.state = next
}

func (p *Pull) close() {
	p.mu.Lock()
	then := p.shut()
	p.mu.Unlock()
	then()
}

// shut is close with mu held; the returned function must be called without it.
func (p *Pull) shut() (then func()) {
	if p.state == closed {
		return func() {}
	}
	p.owe(amount{})
	p.become(closed)
	return func() {
		p.puller.remove(p)
		_ = p.sub.Unsubscribe() // fails only on a closed connection
	}
}

// drain stops listening once all that the server has sent is accepted.
func (p *Pull) drain() {
	if p.sub.Drain() == nil {
		select {
		case <-p.unsubscribed:
		case <-time.After(closeTimeout):
		}
	}
	p.close()
}

type status struct {
	code, description string
	left              amount // requested, but not going to be sent
	known             bool   // left is known
}

// Error ends a pull for a reason other than time or size: the consumer must be looked up again.
type Error struct{ Code, Description string }

func (e *Error) Error() string {
	if e.Description == "" {
		return "the server answered a pull with status " + e.Code
	}
	return fmt.Sprintf("the server answered a pull with status %s, %s", e.Code, e.Description)
}

func statusOf(msg *nats.Msg) *status {
	code := msg.Header.Get("Status")
	if code == "" || len(msg.Data) > 0 || msg.Reply != "" {
		return nil
	}
	s := &status{code: code, description: msg.Header.Get("Description")}
	messages, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages"))
	if err != nil {
		return s
	}
	bytes, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Bytes"))
	s.left, s.known = amount{messages, bytes}, err == nil
	return s
}

// err is nil if time or size ended the pull.
func (s *status) err() error {
	switch {
	case s.code == "408" || s.code == "404",
		s.code == "409" && (s.description == "Batch Completed" || s.description == "Message Size Exceeds MaxBytes"):
		return nil
	case s.code == "503":
		return nats.ErrNoResponders
	}
	return &Error{s.code, s.description}
}
