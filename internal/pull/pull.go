// Package pull takes in the messages of a durable JetStream consumer by pulls that are bounded in messages and in
// bytes, and loses none of what the server sends.
//
// A server that has handed out all that a pull may bring says so at once (409, with how much of the pull is left),
// while the messages of a replicated consumer wait until the quorum knows of the delivery, and are sent after that.
// Whoever stops listening at the 409 loses them for an AckWait, as jetstream's Fetch does. So each pull has an inbox of
// its own that outlives its end:
//
//	open ──▶ late ──▶ lingering ──▶ closed
//
// It is open until the server has ended it, or the owner has given it up; late while it is known how many messages are
// still to come, which count against the owner's room; lingering when that is not known, or took too long, which counts
// no more; and closed once all are there. So what is on its way is bounded by the owner's room, and twice that after a
// fault.
//
// nats.go's Consumer.Messages loses nothing either. But its limit in bytes is that of one pull: with three replicas it
// held three times as much (51 messages where 17 were allowed, nats.go 1.55), and it cannot ask for less while the
// owner has less room.
//
// It is not the package's job to know what a message means, whether the consumer is the one that it was, or when to
// look it up again. All of it is safe for concurrent use.
package pull

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrSilent ends a pull that the server should have given heartbeats for.
var ErrSilent = errors.New("the server gives no heartbeat for an open pull")

// errAbandoned ends a pull for those who still listen to one that they gave up.
var errAbandoned = errors.New("the pull was given up")

// state of a pull; see the package's doc.
type state int

const (
	open state = iota
	late
	lingers
	closed
)

// amount is of messages, and of their bytes as the server counts them.
type amount struct{ messages, bytes int }

// Pull is one request for messages, and what comes of it.
type Pull struct {
	puller       *Puller
	made         time.Time
	asked        amount
	sub          *nats.Subscription
	over         chan struct{} // closed once it is not open any more
	counted      chan struct{} // closed when nothing more of it counts as late
	unsubscribed chan struct{}

	mu       sync.Mutex
	state    state
	err      error // what ended it, once it is over
	silent   int   // looks since anything came last
	came     amount
	owed     amount      // what is late
	left     int         // messages that the server says it will not send
	silence  *time.Timer // ends it while it is open
	patience *time.Timer // ends the state after that
}

func newPull(p *Puller, made time.Time, messages, bytes int) *Pull {
	return &Pull{puller: p, made: made, asked: amount{messages, bytes}, over: make(chan struct{}),
		counted: make(chan struct{}), unsubscribed: make(chan struct{})}
}

// listen subscribes.
func (p *Pull) listen(inbox string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	sub, err := p.puller.nc.Subscribe(inbox, p.on)
	if err != nil {
		return err
	}
	// What comes is bounded by what was asked for. A limit of the client's would drop messages.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return errors.Join(err, sub.Unsubscribe())
	}
	sub.SetClosedHandler(func(string) { close(p.unsubscribed) })
	p.sub = sub
	p.silence = time.AfterFunc(p.puller.config.Heartbeat, p.listened)
	p.puller.add(p)
	return nil
}

// Over is closed when the pull is over. That does not say that all its messages are there.
func (p *Pull) Over() <-chan struct{} { return p.over }

// Err returns what ended the pull: nil when it was time or size, and while it is open.
func (p *Pull) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Settle returns when the pull is over, or nothing has come for it for a while. Who wants to stop calls it before
// Abandon, which would lose what the server is just sending: it would rest unseen until its AckWait is over.
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

// Abandon gives the pull up. What comes for it anyway is taken for a while.
func (p *Pull) Abandon() { p.end(errAbandoned, nil) }

// on takes what comes to the inbox.
func (p *Pull) on(msg *nats.Msg) {
	status := statusOf(msg)
	switch {
	case status == nil:
		p.puller.take(msg, p.made)
		p.count(msg.Size())
	case status.heartbeat():
		p.hear()
	default:
		p.end(status.err(), status)
	}
}

// hear notes a heartbeat.
func (p *Pull) hear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = 0
}

// listened looks, once for each heartbeat, whether one came, and ends the pull after a few that did not. It counts
// looks and not time: a process that was stalled has not listened, either.
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

// count counts a message that was taken.
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
		then = p.shut() // also when it is open: the server has no word for the end when both bounds are met
	}
	p.mu.Unlock()
	then()
}

// whole reports whether nothing more can come. Called with mu held.
func (p *Pull) whole() bool {
	return p.came.messages >= p.asked.messages-p.left || p.came.bytes >= p.asked.bytes
}

// owe changes what is late. Called with mu held.
func (p *Pull) owe(now amount) {
	if now != p.owed {
		p.puller.config.Late(now.messages-p.owed.messages, now.bytes-p.owed.bytes)
	}
	p.owed = now
}

// end ends the pull for its owner, and takes the server's word for what is still to come.
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

// becomeLate waits for messages that the server has promised. Called with mu held.
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

// becomeLingering counts on nothing more. Called with mu held; the returned function is to be called without.
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

// become changes the state, after what is late has been counted. Called with mu held.
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

// close stops listening.
func (p *Pull) close() {
	p.mu.Lock()
	then := p.shut()
	p.mu.Unlock()
	then()
}

// shut is close. Called with mu held; the returned function is to be called without.
func (p *Pull) shut() (then func()) {
	if p.state == closed {
		return func() {}
	}
	p.owe(amount{})
	p.become(closed)
	return func() {
		p.puller.remove(p)
		_ = p.sub.Unsubscribe() // fails only when the connection is closed
	}
}

// drain stops listening once all is taken that the server has sent by now.
func (p *Pull) drain() {
	if p.sub.Drain() == nil {
		select {
		case <-p.unsubscribed:
		case <-time.After(closeTimeout):
		}
	}
	p.close()
}

// status is what the server says of a pull.
type status struct {
	code, description string
	left              amount // what the pull asked for and the server will not send
	known             bool   // the server has said what is left
}

// Error ends a pull for another reason than time or size: the consumer is to be looked up again.
type Error struct{ Code, Description string }

func (e *Error) Error() string {
	if e.Description == "" {
		return "the server answered a pull with status " + e.Code
	}
	return fmt.Sprintf("the server answered a pull with status %s, %s", e.Code, e.Description)
}

// statusOf returns the status that a message is, or nil when it is one of the stream.
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

// heartbeat tells that the pull is open.
func (s *status) heartbeat() bool { return s.code == "100" }

// err is nil when time or size has ended the pull.
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
