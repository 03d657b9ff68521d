package pull

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Overhead is the maximum that subject and acknowledgement subject add to a message's bytes. A limit below
	// max_payload plus this would stall a pull silently.
	Overhead = 4 << 10
	// Heartbeat is the default heartbeat interval of open pulls.
	Heartbeat = 400 * time.Millisecond
	// missedBeats in a row end a pull. The first check may come just before the first heartbeat.
	missedBeats = 3
	// expiry is how long the server keeps an idle pull open. It is short because of clusters: pulls that a stalled
	// server holds for clients that moved elsewhere receive messages until then.
	expiry = 5 * time.Second
	// lateTimeout is the default of Timeout. A leader that was replaced never sends what it promised.
	lateTimeout = 2 * time.Second
	// lingering is how long to listen to a pull that may still bring messages. The server ended it by then.
	lingering = 30 * time.Second
	// Settling is how long an open pull must be idle before Settle assumes that nothing is in flight; settles limits the
	// repeats after messages.
	Settling = 100 * time.Millisecond
	settles  = 10
	// closeTimeout limits Close's wait for outstanding messages.
	closeTimeout = time.Second
)

// Config says what to pull, and who takes it.
type Config struct {
	JS       jetstream.JetStream
	Stream   string
	Consumer string
	// Heartbeat is the heartbeat interval of open pulls. Default Heartbeat.
	Heartbeat time.Duration
	// Timeout is how long promised messages count against the owner's room. Default lateTimeout.
	Timeout time.Duration
	// Take gets each message, with the made of Open. It must not block, because heartbeats use the same goroutine, and
	// must be safe for concurrent use.
	Take func(msg jetstream.Msg, made time.Time)
	// Late gets the changes of the messages and bytes in flight for pulls that are over. For an arriving message it is
	// called after Take.
	Late func(messages, bytes int)
}

// Puller pulls from one consumer.
type Puller struct {
	config Config
	nc     *nats.Conn
	next   string

	mu        sync.Mutex
	pulls     map[*Pull]bool // with a live subscription
	lingering *Pull          // at most one, to bound what is not counted

	taking sync.RWMutex // read-locked while a message is taken
	closed bool
}

// New returns a Puller to be closed.
func New(config Config) *Puller {
	config.Heartbeat, config.Timeout = cmp.Or(config.Heartbeat, Heartbeat), cmp.Or(config.Timeout, lateTimeout)
	return &Puller{config: config, nc: config.JS.Conn(), pulls: map[*Pull]bool{},
		next: Subject(config.JS, config.Stream, config.Consumer)}
}

// Subject is the subject of pull requests.
func Subject(js jetstream.JetStream, stream, consumer string) string {
	prefix := jetstream.DefaultAPIPrefix
	if options := js.Options(); options.APIPrefix != "" {
		prefix = strings.TrimSuffix(options.APIPrefix, ".") + "."
	} else if options.Domain != "" {
		prefix = "$JS." + options.Domain + ".API."
	}
	return prefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer
}

type request struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// Open requests up to that many messages, together up to bytes bytes, or max_payload if that is more. made is when the
// consumer was created, read before the call.
func (p *Puller) Open(made time.Time, messages, bytes int) (*Pull, error) {
	bytes = max(bytes, int(p.nc.MaxPayload())+Overhead)
	beat := min(p.config.Heartbeat, expiry/2) // the server's maximum
	body, err := json.Marshal(request{messages, bytes, expiry, beat})
	if err != nil {
		return nil, err
	}
	one := &Pull{puller: p, made: made, asked: amount{messages, bytes}, over: make(chan struct{}),
		counted: make(chan struct{}), unsubscribed: make(chan struct{})}
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

// Close abandons open pulls, waits briefly for messages in flight, and stops listening. What has reached the client
// is taken; afterwards Take is not called.
func (p *Puller) Close() {
	p.mu.Lock()
	pulls := slices.Collect(maps.Keys(p.pulls))
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

// linger marks a pull as lingering and returns the previous one to close, if any.
func (p *Puller) linger(one *Pull) (before *Pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, p.lingering = p.lingering, one
	return before
}
