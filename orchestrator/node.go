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

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Node claims, publishes and records until it is stopped.
type Node struct {
	*kernel

	cfg   Config
	ready chan struct{}

	stirred   atomic.Bool                     // there may be other work than there was; for the pacer
	elections chan struct{}                   // look for the lease
	lease     atomic.Pointer[workqueue.Lease] // nil while this node does not lead
	duties    []*duty
	stands    workqueue.SessionID // which has said its precedence; lead's alone

	streams   *keeper
	database  *databaseWatch
	consumers *consumers
	events    *publisher
	watch     *watcher
	dispatch  *dispatcher
	fetching  *fetching
	recorder  *recorder
	letters   *letters
	flushing  *flushing
	starts    *starter
	controls  *controls
	redos     *redoer
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
		kernel: newKernel(store, nc, js, cfg.Log),
		cfg:    cfg, ready: make(chan struct{}), elections: make(chan struct{}, 1),
	}
	n.settling = n.settling.Counting(cfg.Meter.Settled)
	n.faults, n.wanted = cfg.Faults, cfg.RequestBytes
	n.name = strings.TrimSpace("node " + cfg.Version + " " + cfg.Host)
	n.furnish()
	duties := append(n.ownDuties(), cfg.Duties...)
	if err := checkDuties(duties); err != nil {
		return nil, err
	}
	n.duties = newDuties(duties)
	return n, nil
}

// furnish makes the rooms, from what needs no other to what needs most.
func (n *Node) furnish() {
	k, cfg, meter := n.kernel, &n.cfg, measured{n.cfg.Meter}
	n.streams = newKeeper(k, keeperConfig{Interval: cfg.StreamsInterval, Reconcile: cfg.ReconcileInterval,
		Streams: cfg.Streams, Entered: func() { n.wakeOwnDuty(dutySweep) }, WakeDuty: n.WakeDuty})
	n.database = newDatabaseWatch(k, n.streams, func() bool { return n.lease.Load() != nil }, cfg.StreamsInterval)
	n.consumers = newConsumers(k, n.streams, cfg.ReconcileInterval)
	n.events = newPublisher(k, n.streams, meter)
	n.watch = newWatcher(k, n.events)
	n.letters = newLetters(k, n.consumers, n.watch, meter)
	n.recorder = newRecorder(k, n.streams, n.letters, n.watch, recordConfig{RecordBatch: cfg.RecordBatch,
		Recorders: cfg.Recorders, Limits: cfg.Limits, Tracer: cfg.Tracer, Meter: meter})
	n.fetching = newFetching(k, n.watch, fetchConfig{Locals: cfg.Locals, LocalWorkers: cfg.LocalWorkers,
		Fetchers: cfg.Fetchers, Recorders: cfg.Recorders, RecordBatch: cfg.RecordBatch, ReplyBacklog: cfg.ReplyBacklog,
		Limits: cfg.Limits, Tracer: cfg.Tracer, Meter: meter})
	n.dispatch = newDispatcher(k, n.fetching, n.consumers, n.streams, n.watch, dispatchConfig{Poll: cfg.Poll,
		ClaimSlices: cfg.ClaimSlices, Publishers: cfg.Publishers, Locals: n.Locals(), Tracer: cfg.Tracer, Meter: meter})
	n.flushing = newFlushing(k, n.watch, flushConfig{Poll: cfg.Poll, SessionTTL: cfg.SessionTTL,
		Recorders: cfg.Recorders, ReplyBacklog: cfg.ReplyBacklog, Limits: cfg.Limits})
	n.controls, n.redos = newControls(k), newRedoer(k)
	n.starts = newStarter(k, n.events, n.controls, meter)
}

// Ready is closed once the node has a session and its streams, and takes work.
func (n *Node) Ready() <-chan struct{} { return n.ready }

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
	advisories, err := n.letters.hearAdvisories()
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
	if err := n.insist(ctx, "set up the streams", n.streams.lookAtEpoch, n.waits); err != nil {
		return err
	}
	return n.insist(ctx, "recall how far the database had come", n.database.recallMark, n.waits)
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
	loops.Go(func() { n.dispatch.run(ctx, draining) })
	loops.Go(func() { n.recorder.run(ctx, draining) })
	loops.Go(func() { n.flushing.run(ctx, draining) })
	loops.Go(func() { n.streams.watch(ctx) })
	loops.Go(func() { n.database.run(ctx) })
	loops.Go(func() { n.lead(ctx) })
	loops.Go(func() { n.events.run(ctx) })
	loops.Go(func() { n.events.runFresh(ctx) })
	loops.Go(func() { n.letters.publishDeadLetters(ctx) })
	loops.Go(func() { n.letters.readDeadLetters(ctx, draining) })
	loops.Go(func() { n.letters.removeExhausted(ctx) })
	loops.Go(func() { n.starts.keepClear(ctx, n.cfg.beatOfLease()) })
	loops.Go(func() { n.watch.run(ctx) })
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

const closeTimeout = 5 * time.Second

func unsubscribe(subs []*nats.Subscription) (failed error) {
	for _, sub := range subs {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			failed = errors.Join(failed, fmt.Errorf("orchestrator: unsubscribe from %s: %w", sub.Subject, err))
		}
	}
	return failed
}

// Starts starts runs, and takes their items.
func (n *Node) Starts() *starter { return n.starts }

// Controls says how runs go on.
func (n *Node) Controls() *controls { return n.controls }

// Redo has things done again.
func (n *Node) Redo() *redoer { return n.redos }

// Collectors are what is flushed.
func (n *Node) Collectors() *flushing { return n.flushing }

// Endpoints are the consumers of endpoints, and what is set for them.
func (n *Node) Endpoints() *consumers { return n.consumers }

// DeadLetters are what no service could deal with.
func (n *Node) DeadLetters() *letters { return n.letters }
