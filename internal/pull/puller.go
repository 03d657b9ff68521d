package pull

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Overhead is what subjects and the acknowledgement subject count as bytes of a pull, at most. A bound below
	// max_payload and this would stall a pull without a word.
	Overhead = 4 << 10
	// Heartbeat is how often the server says that a pull is open, if the owner does not say otherwise.
	Heartbeat = 400 * time.Millisecond
	// missedBeats in a row end a pull. The first look for one may come just before it.
	missedBeats = 3
	// expiry is how long the server keeps a pull open that nothing comes for. It is short for the sake of clusters: what a
	// server that is stalled had asked for on behalf of its clients, who have gone elsewhere, takes messages until then.
	expiry = 5 * time.Second
	// lateTimeout is Timeout, if the owner does not say otherwise. A leader that was replaced in between never sends
	// what it has promised.
	lateTimeout = 2 * time.Second
	// lingering is how long a pull is listened to that may still bring something. The server has ended it by then.
	lingering = 30 * time.Second
	// Settling is how long nothing may come for an open pull before Settle takes it that nothing is on its way, and
	// settles is how often it looks again when something did come.
	Settling = 100 * time.Millisecond
	settles  = 10
	// closeTimeout is how long Close waits for the server's word that nothing more comes.
	closeTimeout = time.Second
)

// Config says what to pull from, and who takes it in.
type Config struct {
	JS       jetstream.JetStream
	Stream   string
	Consumer string
	// Heartbeat is how long the server may at least be silent about an open pull. Default Heartbeat.
	Heartbeat time.Duration
	// Timeout is how long messages that the server has promised count against the owner's room. Default lateTimeout.
	Timeout time.Duration
	// Take is given each message, with what Open was given. It must not wait: heartbeats come the same way. It may be
	// called by several goroutines.
	Take func(msg jetstream.Msg, made time.Time)
	// Late is told by how much the messages and bytes have grown, or shrunk, that are on their way although their pull
	// is over. Of a message that comes, it is told after Take has returned.
	Late func(messages, bytes int)
}

// Puller pulls from one consumer.
type Puller struct {
	config Config
	nc     *nats.Conn
	next   string

	mu        sync.Mutex
	pulls     map[*Pull]bool // whose subscriptions live
	lingering *Pull          // at most one, so that what is not counted is bounded

	taking sync.RWMutex // read while a message is taken
	closed bool
}

// New returns a puller. Close ends it.
func New(config Config) *Puller {
	if config.Heartbeat == 0 {
		config.Heartbeat = Heartbeat
	}
	if config.Timeout == 0 {
		config.Timeout = lateTimeout
	}
	return &Puller{config: config, nc: config.JS.Conn(), pulls: map[*Pull]bool{},
		next: Subject(config.JS, config.Stream, config.Consumer)}
}

// Subject is what pulls are published to.
func Subject(js jetstream.JetStream, stream, consumer string) string {
	prefix := jetstream.DefaultAPIPrefix
	if options := js.Options(); options.APIPrefix != "" {
		prefix = strings.TrimSuffix(options.APIPrefix, ".") + "."
	} else if options.Domain != "" {
		prefix = "$JS." + options.Domain + ".API."
	}
	return prefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer
}

// request is what a pull says to the server.
type request struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// Open asks for up to so many messages, which together have up to so many bytes, or max_payload if that is more. made
// is when the consumer was made, as of before the call.
func (p *Puller) Open(made time.Time, messages, bytes int) (*Pull, error) {
	bytes = max(bytes, int(p.nc.MaxPayload())+Overhead)
	beat := min(p.config.Heartbeat, expiry/2) // the server takes no slower one
	body, err := json.Marshal(request{messages, bytes, expiry, beat})
	if err != nil {
		return nil, err
	}
	one := newPull(p, made, messages, bytes)
	inbox := p.nc.NewInbox()
	if err := one.listen(inbox); err != nil {
		return nil, fmt.Errorf("listen to a pull: %w", err)
	}
	if err := p.nc.PublishRequest(p.next, inbox, body); err != nil {
		one.close()
		return nil, fmt.Errorf("pull: %w", err)
	}
	return one, nil
}

// Close gives up what is open, waits a little for what is known to be on its way, and stops listening; what has come to
// the client by then is taken. Take is not called after it.
func (p *Puller) Close() {
	p.mu.Lock()
	pulls := make([]*Pull, 0, len(p.pulls))
	for one := range p.pulls {
		pulls = append(pulls, one)
	}
	p.mu.Unlock()
	for _, one := range pulls {
		one.Abandon()
		<-one.counted
	}
	var drained sync.WaitGroup
	for _, one := range pulls {
		drained.Go(one.drain)
	}
	drained.Wait()
	p.taking.Lock()
	defer p.taking.Unlock()
	p.closed = true
}

// take gives a message to the owner.
func (p *Puller) take(msg *nats.Msg, made time.Time) {
	p.taking.RLock()
	defer p.taking.RUnlock()
	if !p.closed {
		p.config.Take(message{msg}, made)
	}
}

func (p *Puller) add(one *Pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pulls[one] = true
}

func (p *Puller) remove(one *Pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pulls, one)
	if p.lingering == one {
		p.lingering = nil
	}
}

// linger notes that a pull lingers, and returns the one to close instead, if any.
func (p *Puller) linger(one *Pull) (before *Pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, p.lingering = p.lingering, one
	return before
}
