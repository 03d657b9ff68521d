// Package core is what the rooms of a node share: its log, store and connections, its session, what wakes its loops
// and those of other nodes, what it counts, how long it waits for PostgreSQL and NATS, and what rooms need of one
// another.
//
// It knows no noun: what only one room needs is that room's. A [Core] serves any number of goroutines at once.
package core

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Core is what all rooms of a node share: where things are kept, who the node is, and what tells its loops, and other
// nodes, that there is something to do.
type Core struct {
	Log      *zap.Logger
	Store    *database.DB
	NC       *nats.Conn
	JS       jetstream.JetStream
	Settling settle.Store  // which has the meter told
	Faults   *fault.Points // nil: none
	Tracer   Tracer        // nil: none
	Meter    Meter
	Stats    Counters

	Name   string       // what the node calls itself towards people: "node 1.2.3 host"
	Wanted int          // size of a request, in bytes
	id     atomic.Value // workqueue.SessionID

	// Send publishes over core NATS: NC.Publish, but for tests without a server.
	Send func(subject string, data []byte) error

	Wakes     chan struct{} // look for work
	Looks     chan struct{} // look at the streams
	Publish   chan struct{} // events wait to be published
	Elsewhere atomic.Bool   // there is work at endpoints of other nodes
	freeing   atomic.Bool   // they will be told of room there
}

// New is one whose meter is told nothing.
func New(store *database.DB, nc *nats.Conn, js jetstream.JetStream, log *zap.Logger) *Core {
	return &Core{Log: log, Store: store, NC: nc, JS: js, Settling: settle.New(store), Send: nc.Publish, Meter: NoMeter{},
		Wakes: make(chan struct{}, 1), Looks: make(chan struct{}, 1), Publish: make(chan struct{}, 1)}
}

// WakeSubject is published on core NATS when there is work to look for. Nothing depends on it: nodes poll as well.
const WakeSubject = "tranche.wake"

// WakeFreed tells that an endpoint may take more of what it had already.
const WakeFreed = "freed"

// Session returns the node's present session, or the zero id before it has one. It changes when the node was cut off
// from PostgreSQL for longer than a session lives.
func (k *Core) Session() workqueue.SessionID {
	id, _ := k.id.Load().(workqueue.SessionID)
	return id
}

// SetSession has the node go on in another session.
func (k *Core) SetSession(id workqueue.SessionID) { k.id.Store(id) }

// Wake makes the node look for work now.
func (k *Core) Wake() { Signal(k.Wakes) }

// PublishEvents makes the node publish events now that others have stored.
func (k *Core) PublishEvents() { Signal(k.Publish) }

// Signal has who waits on a channel with room for one go on.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already
	}
}

// Notify publishes on [WakeSubject] what nodes are to look for. A lost message costs them one poll.
func (k *Core) Notify(what string) {
	if err := k.Send(WakeSubject, []byte(what)); err != nil {
		k.Log.Debug("notify other nodes", zap.String("of", what), zap.Error(err))
	}
}

// WakeOthers tells every node, this one included, to look for work. A lost message costs them one poll.
func (k *Core) WakeOthers() {
	k.Wake()
	k.Notify("")
}

// WakeFreed makes the node look for work, and when there is some at endpoints of others, which may take more now, those
// too.
func (k *Core) WakeFreed() {
	k.Wake()
	if !k.Elsewhere.Load() || k.freeing.Swap(true) {
		return
	}
	time.AfterFunc(ElsewherePause, func() { // once for all that comes until then
		k.freeing.Store(false)
		k.Notify(WakeFreed)
	})
}

// NotifyChange tells the nodes and the world of a change that has been committed.
func (k *Core) NotifyChange() {
	k.WakeOthers()
	Signal(k.Publish)
}

// Look makes the node look at the streams now.
func (k *Core) Look() { Signal(k.Looks) }

// QueryTimeout bounds one look. A server that restarts may leave a request unanswered; the next look asks again.
const QueryTimeout = 2 * time.Second

// ElsewherePause is the least time between two looks of a node that find nothing to do but work of others: whoever
// makes some wakes all nodes.
const ElsewherePause = 25 * time.Millisecond

// Jitter spreads nodes that poll: between half of d and d.
func Jitter(d time.Duration) time.Duration { return d/2 + time.Duration(rand.Int64N(int64(d)/2+1)) }

// RequestBytes is the wanted size of a request.
func (k *Core) RequestBytes() int64 { return min(int64(k.Wanted), k.LargestRequest()) }

// LargestRequest leaves room for headers, and for items larger than the mean of their block.
func (k *Core) LargestRequest() int64 { return k.NC.MaxPayload() * 3 / 4 }

// PublishTimeout is for JetStream's acknowledgement of a message that is sent alone.
const PublishTimeout = 5 * time.Second

// RecordBytes bounds the replies of one commit, and what is fetched ahead.
const RecordBytes = 8 << 20

// Shuffle puts things in an order of chance.
func Shuffle[T any](things []T) {
	rand.Shuffle(len(things), func(i, j int) { things[i], things[j] = things[j], things[i] })
}

// ReconcileTimeout bounds one round of a leader task that asks JetStream much; the next begins again.
const ReconcileTimeout = 30 * time.Second

// OutcomeObserver sees to what a commit brought beside outcomes, of what came at a time.
type OutcomeObserver interface {
	Seen(out settle.Recorded, came time.Time)
}

// Announcer has the events of completed runs published. What completed them came at a time.
type Announcer interface {
	Announce(completed []settle.Completion, came time.Time)
}

// Epochs are those of the streams.
type Epochs interface {
	// Now returns the present one, and what is closed when a later one begins.
	Now() (epoch int64, changed <-chan struct{})
}

// Ensurer sees to it that endpoints have consumers.
type Ensurer interface {
	// Ensure makes that of an endpoint, if need be, and returns the epoch of the streams in which it is there.
	Ensure(ctx context.Context, endpoint string) (epoch int64, err error)
}

// Counters is what a node counts over its life. They go into its session's row with every heartbeat.
type Counters struct {
	Claims, EmptyClaims, Slices, Requests atomic.Int64
	Republished, Postponed, Splits        atomic.Int64
	Unreachable                           atomic.Int64
	Commits, Replies, Slots               atomic.Int64
	Stale, Duplicates, Quarantined        atomic.Int64
	Expired, Extended, Released           atomic.Int64
	SessionsLost                          atomic.Int64
	Buried, Exhausted, Requeued           atomic.Int64
	Fetches, FetchesFailed, OddSlots      atomic.Int64
	Hung, RecordedAgain                   atomic.Int64
	Flushes, FlushedOps, FailedOps        atomic.Int64
	StaleFlushes                          atomic.Int64
}

// maxTaskError bounds what a heartbeat carries of an error, in bytes.
const maxTaskError = 500

// Readable is the text of an error as a heartbeat can carry it.
func Readable(err error) string {
	text := strings.ReplaceAll(err.Error(), "\x00", "") // PostgreSQL takes none
	return strings.ToValidUTF8(text[:min(len(text), maxTaskError)], "")
}
