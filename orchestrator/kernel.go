package orchestrator

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/settle"
	"go.uber.org/zap"
)

// kernel is what all rooms of a node share: where things are kept, who the node is, and what tells its loops, and other
// nodes, that there is something to do.
type kernel struct {
	log      *zap.Logger
	store    *database.DB
	nc       *nats.Conn
	js       jetstream.JetStream
	settling settle.Store  // which has the meter told
	faults   *fault.Points // nil: none
	stats    counters

	name    string       // what the node calls itself towards people: "node 1.2.3 host"
	wanted  int          // size of a request, in bytes
	session atomic.Value // workqueue.SessionID

	wakes     chan struct{} // look for work
	looks     chan struct{} // look at the streams
	publish   chan struct{} // events wait to be published
	elsewhere atomic.Bool   // there is work at endpoints of other nodes
	freeing   atomic.Bool   // they will be told of room there
}

// newKernel is one whose meter is told nothing.
func newKernel(store *database.DB, nc *nats.Conn, js jetstream.JetStream, log *zap.Logger) *kernel {
	return &kernel{log: log, store: store, nc: nc, js: js, settling: settle.New(store),
		wakes: make(chan struct{}, 1), looks: make(chan struct{}, 1), publish: make(chan struct{}, 1)}
}

// wakeSubject is published on core NATS when there is work to look for. Nothing depends on it: nodes poll as well.
const wakeSubject = "tranche.wake"

// wakeFreed tells that an endpoint may take more of what it had already.
const wakeFreed = "freed"

// Session returns the node's present session, or the zero id before it has one. It changes when the node was cut off
// from PostgreSQL for longer than a session lives.
func (k *kernel) Session() workqueue.SessionID {
	id, _ := k.session.Load().(workqueue.SessionID)
	return id
}

// Wake makes the node look for work now.
func (k *kernel) Wake() { signal(k.wakes) }

// PublishEvents makes the node publish events now that others have stored.
func (k *kernel) PublishEvents() { signal(k.publish) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already
	}
}

// wakeOthers tells every node, this one included, to look for work. A lost message costs them one poll.
func (k *kernel) wakeOthers() {
	k.Wake()
	if err := k.nc.Publish(wakeSubject, nil); err != nil {
		k.log.Debug("wake other nodes", zap.Error(err))
	}
}

// wakeFreed makes the node look for work, and when there is some at endpoints of others, which may take more now, those
// too.
func (k *kernel) wakeFreed() {
	k.Wake()
	if !k.elsewhere.Load() || k.freeing.Swap(true) {
		return
	}
	time.AfterFunc(elsewherePause, func() { // once for all that comes until then
		k.freeing.Store(false)
		_ = k.nc.Publish(wakeSubject, []byte(wakeFreed)) // what is lost costs the others a poll
	})
}

// spread tells the nodes and the world of a change that has been committed.
func (k *kernel) spread() {
	k.wakeOthers()
	signal(k.publish)
}

// Look makes the node look at the streams now.
func (k *kernel) Look() { signal(k.looks) }

// lookTimeout bounds one look. A server that restarts may leave a request unanswered; the next look asks again.
const lookTimeout = 2 * time.Second

// elsewherePause is the least time between two looks of a node that find nothing to do but work of others: whoever
// makes some wakes all nodes.
const elsewherePause = 25 * time.Millisecond

// jitter spreads nodes that poll: between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + time.Duration(rand.Int64N(int64(d)/2+1)) }

// requestBytes is the wanted size of a request.
func (k *kernel) requestBytes() int64 { return min(int64(k.wanted), k.largestRequest()) }

// largestRequest leaves room for headers, and for items larger than the mean of their block.
func (k *kernel) largestRequest() int64 { return k.nc.MaxPayload() * 3 / 4 }

// publishTimeout is for JetStream's acknowledgement of a message that is sent alone.
const publishTimeout = 5 * time.Second

// recordBytes bounds the replies of one commit, and what is fetched ahead.
const recordBytes = 8 << 20

// shuffle puts things in an order of chance.
func shuffle[T any](things []T) {
	rand.Shuffle(len(things), func(i, j int) { things[i], things[j] = things[j], things[i] })
}

const reconcileTimeout = 30 * time.Second
