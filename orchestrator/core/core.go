// Package core is what a node's packages share: connections, session, counters, timeouts, wake-ups and interfaces.
// What only one package needs does not belong here. A [Core] is safe for concurrent use.
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

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Core is shared by all packages of a node.
type Core struct {
	Log      *zap.Logger
	Store    *database.DB
	NC       *nats.Conn
	JS       jetstream.JetStream
	Settling settle.Store  // counts for the meter
	Faults   *fault.Points // nil: none
	Tracer   Tracer        // nil: none
	Meter    Meter
	Stats    Counters

	Name   string       // the node's name, human-readable: "node 1.2.3 host"
	Wanted int          // target size of a request, in bytes
	id     atomic.Value // workqueue.SessionID

	// Send publishes over core NATS: NC.Publish, except in tests without a server.
	Send func(subject string, data []byte) error

	Wakes     chan struct{} // poll for work
	Looks     chan struct{} // check the streams
	Publish   chan struct{} // publish events
	Elsewhere atomic.Bool   // other nodes' endpoints have work
	freeing   atomic.Bool   // WakeFreed is about to notify them
	Rests     atomic.Bool   // at the last heartbeat no run was in progress, and there was no collector

	Awaited Awaited
}

// Slower returns the time between two polls for what can only happen during a run: four times as long while the
// installation rests.
func (k *Core) Slower(every time.Duration) time.Duration {
	if k.Rests.Load() {
		return 4 * every
	}
	return every
}

// New returns a core without a meter.
func New(store *database.DB, nc *nats.Conn, js jetstream.JetStream, log *zap.Logger) *Core {
	return &Core{Log: log, Store: store, NC: nc, JS: js, Settling: settle.New(store), Send: nc.Publish, Meter: NoMeter{},
		Wakes: make(chan struct{}, 1), Looks: make(chan struct{}, 1), Publish: make(chan struct{}, 1)}
}

// WakeSubject carries wake-ups over core NATS. They only save time: nodes also poll.
const WakeSubject = "tranche.wake"

// WakeFreed is the message that an endpoint can take more of its existing work.
const WakeFreed = "freed"

// Session returns the current session, or the zero id. A new one starts if PostgreSQL was unavailable for longer than
// a session lives.
func (k *Core) Session() workqueue.SessionID {
	id, _ := k.id.Load().(workqueue.SessionID)
	return id
}

// SetSession changes the node's session.
func (k *Core) SetSession(id workqueue.SessionID) { k.id.Store(id) }

// Wake makes the node poll for work now.
func (k *Core) Wake() { Signal(k.Wakes) }

// PublishEvents makes the node publish now what others have added to the outbox.
func (k *Core) PublishEvents() { Signal(k.Publish) }

// Signal sends on a channel with a buffer of one, unless a signal is pending.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is pending
	}
}

// Notify publishes a message on [WakeSubject]. If it is lost, nodes notice at their next poll.
func (k *Core) Notify(what string) {
	if err := k.Send(WakeSubject, []byte(what)); err != nil {
		k.Log.Debug("notify other nodes", zap.String("of", what), zap.Error(err))
	}
}

// WakeOthers makes every node poll for work, including this one.
func (k *Core) WakeOthers() {
	k.Wake()
	k.Notify("")
}

// WakeFreed makes the node poll for work, and the other nodes if their endpoints have some.
func (k *Core) WakeFreed() {
	k.Wake()
	if !k.Elsewhere.Load() || k.freeing.Swap(true) {
		return
	}
	time.AfterFunc(ElsewherePause, func() { // once for all calls until then
		k.freeing.Store(false)
		k.Notify(WakeFreed)
	})
}

// NotifyChange wakes all nodes after the commit of a change, and publishes its events.
func (k *Core) NotifyChange() {
	k.WakeOthers()
	Signal(k.Publish)
}

// Look makes the node check the streams now.
func (k *Core) Look() { Signal(k.Looks) }

const (
	// QueryTimeout limits one query of JetStream. A restarting server may not answer; the next check retries.
	QueryTimeout = 2 * time.Second
	// LongestQuery limits repeated queries whose limit grows while JetStream is silent.
	LongestQuery = 30 * time.Second
)

// Querying returns the limit of queries that are repeated until JetStream answers.
func Querying() backoff.Timeout { return backoff.Timeout{First: QueryTimeout, Longest: LongestQuery} }

// ElsewherePause is the least time between polls that find only work of other nodes.
const ElsewherePause = 25 * time.Millisecond

// Jitter returns a random duration between half of d and d, to spread polling nodes.
func Jitter(d time.Duration) time.Duration { return d/2 + time.Duration(rand.Int64N(int64(d)/2+1)) }

// RequestBytes returns the target size of a request.
func (k *Core) RequestBytes() int64 { return min(int64(k.Wanted), k.LargestRequest()) }

// LargestRequest leaves space for headers, and for items larger than the mean of their block.
func (k *Core) LargestRequest() int64 { return k.NC.MaxPayload() * 3 / 4 }

// PublishTimeout limits JetStream's acknowledgement of a single message.
const PublishTimeout = 5 * time.Second

// RecordBytes limits the replies of one commit, and those prefetched.
const RecordBytes = 4 << 20

// Shuffle puts things in random order.
func Shuffle[T any](things []T) {
	rand.Shuffle(len(things), func(i, j int) { things[i], things[j] = things[j], things[i] })
}

// ReconcileTimeout limits one round of a leader task with many queries of JetStream; the next round starts over.
const ReconcileTimeout = 30 * time.Second

// OutcomeObserver handles what a commit brought in addition to outcomes. came is when its replies came.
type OutcomeObserver interface {
	Seen(out settle.Recorded, came time.Time)
}

// Announcer publishes the events of completed runs. came is when the reply that completed them came.
type Announcer interface {
	Announce(completed []settle.Completion, came time.Time)
}

// Epochs knows the streams' epoch.
type Epochs interface {
	// Now returns the current epoch, and a channel that is closed when a later one begins.
	Now() (epoch int64, changed <-chan struct{})
}

// Ensurer creates the consumers of endpoints.
type Ensurer interface {
	// Ensure creates an endpoint's consumer if it is missing, and returns the epoch in which it exists.
	Ensure(ctx context.Context, endpoint string) (epoch int64, err error)
}

// Counters are a node's counters since its start. Every heartbeat saves them in the session's row.
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

const maxTaskError = 500

// Readable returns the text of an error for a heartbeat.
func Readable(err error) string {
	text := strings.ReplaceAll(err.Error(), "\x00", "") // PostgreSQL accepts none
	return strings.ToValidUTF8(text[:min(len(text), maxTaskError)], "")
}
