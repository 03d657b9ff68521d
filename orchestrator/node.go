package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// wakeSubject is published on core NATS when there is work to look for. Nothing depends on it: nodes poll as well.
const wakeSubject = "tranche.wake"

// wakeFreed tells that an endpoint may take more of what it had already.
const wakeFreed = "freed"

// Node claims, publishes and records until it is stopped.
type Node struct {
	cfg   Config
	log   *zap.Logger
	store *database.DB
	nc    *nats.Conn
	js    jetstream.JetStream

	session atomic.Value // workqueue.SessionID
	ready   chan struct{}
	stats   counters

	wakes      chan struct{} // look for work
	stirred    atomic.Bool   // there may be other work than there was; for the pacer
	elsewhere  atomic.Bool   // there is work at endpoints of other nodes
	freeing    atomic.Bool   // they will be told of room there
	looks      chan struct{} // look at the streams
	elections  chan struct{} // look for the lease
	publish    chan struct{} // events wait to be published
	unrecorded chan struct{} // a reply could not be recorded
	requeued   chan struct{} // requeued dead letters wait to be sent
	exhausted  chan exhaustion
	lease      atomic.Pointer[workqueue.Lease] // nil while this node does not lead
	duties     []*duty
	stands     workqueue.SessionID // which has said its precedence; lead's alone

	streams    streamsState
	mark       session.Mark // the furthest that the database is known to have come; watchDatabase's
	single     single       // of the server
	unmoved    time.Time    // when no service had moved at many endpoints; noteHandedOut's
	differing  sync.Once    // what the program says of the streams has been compared
	suspects   suspects
	stalled    stalling
	reach      reach
	endpoints  endpointSet
	pending    *semaphore.Weighted // bytes of requests that JetStream has not acknowledged
	recorder   stream.Incarnation  // of the reply consumer
	settling   settle.Store        // which has the meter told
	deadReader stream.Incarnation  // of the consumer of dead letters
	uncleared  runSet              // failed loads of which something may be left
	watch      watchlist           // what commits gave reason to look at
	alarms     alarms              // when slices come due that it has scheduled
	fresh      *freshEvents        // that it has just committed
	fetching   *fetching           // what it works on itself
	flushing   *flushing           // what it does for collectors
}

// New returns a node on a migrated database and a NATS connection. Neither is closed by it.
func New(store *database.DB, nc *nats.Conn, cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(ackTimeout),
		jetstream.WithPublishAsyncMaxPending(maxPendingPublishes))
	if err != nil {
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	n := &Node{
		cfg: cfg, log: cfg.Log, store: store, nc: nc, js: js, ready: make(chan struct{}),
		wakes: make(chan struct{}, 1), looks: make(chan struct{}, 1), elections: make(chan struct{}, 1),
		publish: make(chan struct{}, 1), unrecorded: make(chan struct{}, 1), requeued: make(chan struct{}, 1),
		exhausted: make(chan exhaustion, advisoryRoom), pending: semaphore.NewWeighted(maxPendingBytes),
		settling: settle.New(store).Counting(cfg.Meter.Settled),
	}
	duties := append(n.ownDuties(), cfg.Duties...)
	if err := checkDuties(duties); err != nil {
		return nil, err
	}
	n.duties = newDuties(duties)
	n.fetching = newFetching(n)
	n.flushing = newFlushing(n)
	n.endpoints.known = map[string]bool{}
	n.streams.changed = make(chan struct{})
	n.watch.come = make(chan struct{}, 1)
	n.fresh = newFreshEvents()
	n.recorder.Ask = n.whenMade(wire.StreamReply, wire.RecorderConsumer)
	n.deadReader.Ask = n.whenMade(wire.StreamDead, wire.DeadLetterConsumer)
	return n, nil
}

// Session returns the node's present session, or the zero id before it has one. It changes when the node was cut off
// from PostgreSQL for longer than a session lives.
func (n *Node) Session() workqueue.SessionID {
	id, _ := n.session.Load().(workqueue.SessionID)
	return id
}

// name is what the node calls itself towards people: "node 1.2.3 host".
func (n *Node) name() string { return strings.TrimSpace("node " + n.cfg.Version + " " + n.cfg.Host) }

// Ready is closed once the node has a session and its streams, and takes work.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Wake makes the node look for work now.
func (n *Node) Wake() { signal(n.wakes) }

// PublishEvents makes the node publish events now that others have stored.
func (n *Node) PublishEvents() { signal(n.publish) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already
	}
}

// Run works until ctx ends, then stops in good order within the configured grace: no new claims, requests at hand are
// published, replies at hand are recorded, and what is left is handed back. It returns nil after such a stop. When the
// connection to NATS is closed it stops likewise, and returns [ErrConnectionClosed].
func (n *Node) Run(ctx context.Context) error {
	connected, end := n.whileConnected(ctx)
	err := n.run(connected)
	return errors.Join(end(), err)
}

func (n *Node) run(ctx context.Context) error {
	watching, unwatch := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { stream.PermissionsOf(n.nc).Run(watching, n.log) })
	defer watch.Wait()
	defer unwatch()
	err := n.open(ctx)
	if ctx.Err() != nil { // stopped before it began
		return nil // the error says no more than that
	}
	if err != nil {
		return err
	}
	subs, err := n.subscribe()
	if err != nil {
		return errors.Join(err, unsubscribe(subs))
	}
	close(n.ready)
	n.work(ctx)
	return errors.Join(unsubscribe(subs), n.close(ctx))
}

// subscribe to what comes over core NATS. Nothing depends on it: all of it is looked for as well.
func (n *Node) subscribe() ([]*nats.Subscription, error) {
	wake, err := n.nc.Subscribe(wakeSubject, n.woken)
	if err != nil {
		return nil, fmt.Errorf("orchestrator: subscribe to %s: %w", wakeSubject, err)
	}
	advisories, err := n.hearAdvisories()
	return append(advisories, wake), err
}

// woken is told what other nodes know, this one's own messages included.
func (n *Node) woken(msg *nats.Msg) {
	name, isDuty := strings.CutPrefix(string(msg.Data), wakeDuty)
	switch {
	case isDuty:
		n.wakeOwnDuty(name)
	case string(msg.Data) == wakeElection:
		signal(n.elections)
	case string(msg.Data) == wakeFlush:
		n.flushing.wake()
	case string(msg.Data) == wakeFreed:
		n.Wake()
	default:
		n.stirred.Store(true)
		n.Wake()
	}
}

// open gets a session, NATS and the streams, however long they take to be there, unless Config.Waits says otherwise.
func (n *Node) open(ctx context.Context) error {
	if err := n.insist(ctx, "start a session", n.newSession, n.waits); err != nil {
		return err
	}
	if err := n.awaitNATS(ctx); err != nil {
		return err
	}
	if err := n.insist(ctx, "set up the streams", n.lookAtEpoch, n.waits); err != nil {
		return err
	}
	return n.insist(ctx, "recall how far the database had come", n.recallMark, n.waits)
}

// waits tells whoever wants to know what the node waits for.
func (n *Node) waits(what string, err error, pause time.Duration) error {
	if n.cfg.Waits == nil {
		return n.warn(what, err, pause)
	}
	return n.cfg.Waits(what, err)
}

// awaitNATS returns once the connection to NATS is there.
func (n *Node) awaitNATS(ctx context.Context) error {
	connected := n.nc.StatusChanged(nats.CONNECTED)
	defer n.nc.RemoveStatusListener(connected)
	for !n.nc.IsConnected() {
		if err := n.waits("reach NATS", cmp.Or(n.nc.LastError(), errNoNATS), natsPause); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("reach NATS: %w", context.Cause(ctx))
		case <-connected:
		case <-time.After(natsPause):
		}
	}
	return nil
}

// natsPause is how often a node that begins says that there is no NATS.
const natsPause = time.Second

func (n *Node) newSession(ctx context.Context) error {
	info := session.NodeInfo{Host: n.cfg.Host, PID: os.Getpid(), Version: n.cfg.Version}
	id, err := session.New(n.store).StartSession(ctx, info, n.cfg.SessionTTL)
	if err != nil {
		return err
	}
	n.session.Store(id)
	n.log.Info("session started", zap.Stringer("session", id))
	return nil
}

// work runs the loops. Those that feed others end first: claimer, publishers, confirmer. The heartbeat goes on until
// the last of them is done, so that nobody takes from a node what it is still bringing to an end.
func (n *Node) work(ctx context.Context) {
	beating, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeating()
	var heart sync.WaitGroup
	heart.Go(func() { n.beat(beating) })

	// What is under way may end within the grace; after that it is cut off.
	draining, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(n.cfg.Grace, cut) })
	defer stop()

	var loops sync.WaitGroup
	loops.Go(func() { n.runPublishing(ctx, draining) })
	loops.Go(func() { n.runRecording(ctx, draining) })
	loops.Go(func() { n.runFlushing(ctx, draining) })
	loops.Go(func() { n.watchEpoch(ctx) })
	loops.Go(func() { n.watchDatabase(ctx) })
	loops.Go(func() { n.lead(ctx) })
	loops.Go(func() { n.publishEvents(ctx) })
	loops.Go(func() { n.publishFresh(ctx) })
	loops.Go(func() { n.publishDeadLetters(ctx) })
	loops.Go(func() { n.readDeadLetters(ctx, draining) })
	loops.Go(func() { n.removeExhausted(ctx) })
	loops.Go(func() { n.keepClear(ctx) })
	loops.Go(func() { n.keepWatch(ctx) })
	loops.Wait()
	stopBeating()
	heart.Wait()
}

// close hands back what the node still holds.
func (n *Node) close(ctx context.Context) error {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	flushes, err := collectorstore.New(n.store).EndFlushes(closing, n.Session())
	if err != nil {
		n.log.Warn("give back what is being flushed; it stays with the session until that expires", zap.Error(err))
	}
	released, err := n.settling.EndSession(closing, n.Session())
	if err != nil {
		return fmt.Errorf("orchestrator: stop: claims stay with the session until it expires: %w", err)
	}
	n.log.Info("session ended", zap.Stringer("session", n.Session()), zap.Int("handed_back", released+flushes))
	n.wakeOthers()
	return nil
}

// The end of the session or of the lease; else they expire.
const closeTimeout = 5 * time.Second

func unsubscribe(subs []*nats.Subscription) (failed error) {
	for _, sub := range subs {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			failed = errors.Join(failed, fmt.Errorf("orchestrator: unsubscribe from %s: %w", sub.Subject, err))
		}
	}
	return failed
}

// wakeOthers tells every node, this one included, to look for work. A lost message costs them one poll.
func (n *Node) wakeOthers() {
	n.Wake()
	if err := n.nc.Publish(wakeSubject, nil); err != nil {
		n.log.Debug("wake other nodes", zap.Error(err))
	}
}

// retry calls f until it succeeds or ctx ends, with growing pauses.
func (n *Node) retry(ctx context.Context, what string, f func(context.Context) error) error {
	return n.insist(ctx, what, f, n.warn)
}

// warn tells of something that is tried again.
func (n *Node) warn(what string, err error, pause time.Duration) error {
	n.log.Warn("cannot "+what+"; trying again", zap.Error(err), zap.Duration("in", pause))
	return nil
}

// insist is retry, which ends with what tell returns when that is told of an error.
func (n *Node) insist(ctx context.Context, what string, f func(context.Context) error,
	tell func(what string, err error, pause time.Duration) error,
) error {
	pauses := backoff.Doubling{First: 100 * time.Millisecond, Longest: 5 * time.Second}
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		pause := pauses.Next()
		if ctx.Err() == nil {
			if end := tell(what, err, pause); end != nil {
				return end
			}
		}
		if backoff.Sleep(ctx, pause) != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
}

// wakeFreed makes the node look for work, and when there is some at endpoints of others, which may take more now, those
// too.
func (n *Node) wakeFreed() {
	n.Wake()
	if !n.elsewhere.Load() || n.freeing.Swap(true) {
		return
	}
	time.AfterFunc(elsewherePause, func() { // once for all that comes until then
		n.freeing.Store(false)
		_ = n.nc.Publish(wakeSubject, []byte(wakeFreed)) // what is lost costs the others a poll
	})
}
