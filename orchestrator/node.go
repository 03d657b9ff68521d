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
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/orchestrator/dispatch"
	"github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/orchestrator/flush"
	"github.com/tranchehq/tranche/orchestrator/record"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Node claims, publishes and records until it is stopped.
type Node struct {
	core     *core.Core
	sessions sessionStore
	cfg      Config
	ready    chan struct{}

	stirred   atomic.Bool                     // there may be new work; for the pacer
	elections chan struct{}                   // check the lease now
	strangers chan error                      // the streams belong to another installation
	lease     atomic.Pointer[workqueue.Lease] // nil while this node does not lead
	tasks     []*task
	announced workqueue.SessionID // whose precedence is saved; for lead only

	streams   *streams.Keeper
	database  *rewind
	consumers *streams.Consumers
	backlogs  queueList // shared by several leader tasks
	events    *publisher
	watch     *watcher
	dispatch  *dispatch.Dispatcher
	fetching  *fetch.Worker
	recorder  *record.Recorder
	letters   *streams.Letters
	flushing  *flush.Flusher
	runs      *Runs
}

// New returns a node on a migrated database and a NATS connection. It closes neither.
func New(store *database.DB, nc *nats.Conn, cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(dispatch.AckTimeout),
		jetstream.WithPublishAsyncMaxPending(dispatch.MaxPendingPublishes))
	if err != nil {
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	n := &Node{
		core: core.New(store, nc, js, cfg.Log), sessions: session.New(store),
		cfg: cfg, ready: make(chan struct{}), elections: make(chan struct{}, 1), strangers: make(chan error, 1),
	}
	n.core.Settling = n.core.Settling.Counting(cfg.Meter.Settled)
	n.core.Faults, n.core.Wanted, n.core.Tracer, n.core.Meter = cfg.Faults, requestBytes, cfg.Tracer, cfg.Meter
	n.core.Name = strings.TrimSpace("node " + cfg.Version + " " + cfg.Host)
	n.newComponents()
	tasks := append(n.ownLeaderTasks(), cfg.LeaderTasks...)
	if err := checkLeaderTasks(tasks); err != nil {
		return nil, err
	}
	n.tasks = newLeaderTasks(tasks)
	return n, nil
}

func (n *Node) newComponents() {
	k, cfg := n.core, &n.cfg
	n.streams = streams.NewKeeper(k, streams.Config{Interval: cfg.StreamsInterval, Reconcile: cfg.ReconcileInterval,
		Streams: cfg.Streams, Entered: func() { n.wakeOwnTask(taskSweep) }, Try: func() { n.WakeLeaderTask(taskWritable) },
		Stranger: func(err error) { n.strangers <- err }})
	n.database = &rewind{node: k, streams: n.streams, leads: func() bool { return n.lease.Load() != nil },
		interval: cfg.StreamsInterval, limit: core.Querying()}
	n.consumers = streams.NewConsumers(k, n.streams, cfg.ReconcileInterval)
	n.events = &publisher{node: k, streams: n.streams, fresh: newFreshEvents()}
	n.watch = &watcher{node: k, events: n.events, come: make(chan struct{}, 1)}
	n.letters = streams.NewLetters(k, n.consumers, n.watch)
	n.recorder = record.New(k, n.streams, n.letters, n.watch, record.Config{RecordBatch: cfg.RecordBatch,
		Recorders: recorders, Limits: cfg.Limits})
	n.fetching = fetch.New(k, n.watch, fetch.Config{Locals: cfg.Locals, LocalWorkers: cfg.LocalWorkers,
		Fetchers: cfg.Fetchers, Recorders: recorders, RecordBatch: cfg.RecordBatch, ReplyBacklog: cfg.ReplyBacklog,
		Limits: cfg.Limits})
	n.dispatch = dispatch.New(k, n.fetching, n.consumers, n.streams, n.watch, dispatch.Config{Poll: cfg.Poll,
		ClaimSlices: cfg.ClaimSlices, Locals: n.Locals()})
	n.flushing = flush.New(k, n.watch, flush.Config{Poll: cfg.Poll, SessionTTL: cfg.SessionTTL,
		Recorders: recorders, ReplyBacklog: cfg.ReplyBacklog, Limits: cfg.Limits})
	n.runs = &Runs{node: k, loads: start.New(k.Store), events: n.events}
}

// Session returns the current session, or the zero id. See [core.Core.Session].
func (n *Node) Session() workqueue.SessionID { return n.core.Session() }

// Stalled is not nil while NATS is connected but the streams do not answer: JetStream has no quorum.
func (n *Node) Stalled() *streams.StalledStreams { return n.streams.Stalled() }

// Wake makes the node poll for work now.
func (n *Node) Wake() { n.core.Wake() }

// PublishEvents makes the node publish now what others have added to the outbox.
func (n *Node) PublishEvents() { n.core.PublishEvents() }

// Ready is closed once the node has a session and its streams, and takes work.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Run works until ctx ends, then stops within the grace: requests and replies in progress are finished, the rest is
// handed back, and it returns nil. It fails with [ErrConnectionClosed] when the connection to NATS is closed, or a
// [stream.StrangerError] when the streams belong to another installation.
func (n *Node) Run(ctx context.Context) error {
	connected, end := n.whileConnected(ctx)
	err := n.run(connected)
	return errors.Join(end(), err)
}

func (n *Node) run(ctx context.Context) error {
	watching, unwatch := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { stream.PermissionsOf(n.core.NC).Run(watching, n.core.Log) })
	defer watch.Wait()
	defer unwatch()
	err := n.open(ctx)
	if ctx.Err() != nil { // stopped before it began
		return nil // the error means only that
	}
	if err != nil {
		return err
	}
	subs, err := n.subscribe()
	if err != nil {
		return errors.Join(err, unsubscribe(subs))
	}
	close(n.ready)
	stopped := n.work(ctx)
	return errors.Join(unsubscribe(subs), n.close(ctx, stopped.Add(n.cfg.Grace)))
}

// subscribe listens over core NATS. Lost messages only cost time: everything is also polled, and services request parts
// again.
func (n *Node) subscribe() ([]*nats.Subscription, error) {
	wake, err := n.core.NC.Subscribe(core.WakeSubject, func(msg *nats.Msg) { n.woken(string(msg.Data)) })
	if err != nil {
		return nil, fmt.Errorf("orchestrator: subscribe to %s: %w", core.WakeSubject, err)
	}
	subs, err := n.letters.HearAdvisories()
	if subs = append(subs, wake); err != nil {
		return subs, err
	}
	parts, err := dispatch.ServeParts(n.core)
	return append(subs, parts...), err
}

// woken handles a message from a node, possibly this one.
func (n *Node) woken(what string) {
	name, isTask := strings.CutPrefix(what, wakeTask)
	switch {
	case isTask:
		n.wakeOwnTask(name)
	case what == wakeElection:
		core.Signal(n.elections)
	case what == flush.WakeFlush:
		n.flushing.Wake()
	case what == core.WakeFreed:
		n.core.Wake()
	default:
		n.stirred.Store(true)
		n.core.Wake()
	}
}

// open gets a session, NATS and the streams, and waits for them indefinitely unless Config.Waits returns an error.
func (n *Node) open(ctx context.Context) error {
	if err := n.core.RetryUntil(ctx, "start a session", n.newSession, n.waits); err != nil {
		return err
	}
	beating, stop := context.WithCancel(ctx)
	var heart sync.WaitGroup
	defer heart.Wait()
	defer stop()
	heart.Go(func() { n.beat(beating) }) // while it waits for NATS, the node is alive and reports the reason
	if err := n.awaitNATS(ctx); err != nil {
		return err
	}
	if err := n.core.RetryUntil(ctx, "set up the streams", n.streams.LookAtEpoch, n.waits); err != nil {
		return err
	}
	return n.core.RetryUntil(ctx, "recall how far the database had come", n.database.RecallMark, n.waits)
}

// waits reports what the node waits for. Streams of another installation end the start.
func (n *Node) waits(what string, err error, pause time.Duration) error {
	if _, strangers := errors.AsType[*stream.StrangerError](err); strangers {
		return err
	}
	if n.cfg.Waits == nil {
		return n.core.Warn(what, err, pause)
	}
	return n.cfg.Waits(what, err)
}

func (n *Node) awaitNATS(ctx context.Context) error {
	connected := n.core.NC.StatusChanged(nats.CONNECTED)
	defer n.core.NC.RemoveStatusListener(connected)
	for !n.core.NC.IsConnected() {
		if err := n.waits("reach NATS", cmp.Or(n.core.NC.LastError(), streams.ErrNoNATS), natsPause); err != nil {
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

// natsPause is the time between reports that NATS is not connected.
const natsPause = time.Second

func (n *Node) newSession(ctx context.Context) error {
	info := session.NodeInfo{Host: n.cfg.Host, PID: os.Getpid(), Version: n.cfg.Version}
	id, err := n.sessions.StartSession(ctx, info, n.cfg.SessionTTL)
	if err != nil {
		return err
	}
	n.core.SetSession(id)
	n.core.Log.Info("session started", zap.Stringer("session", id))
	return nil
}

// work runs the loops. Those that feed others end first. The heartbeat outlasts them all, so that no other node takes
// over unfinished work. It returns when the stop began.
func (n *Node) work(ctx context.Context) (stopped time.Time) {
	beating, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeating()
	var heart sync.WaitGroup
	heart.Go(func() { n.beat(beating) })

	// Work in progress may end within the grace; after that it is interrupted.
	draining, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(n.cfg.Grace, cut) })
	defer stop()

	var loops sync.WaitGroup
	loops.Go(func() { <-ctx.Done(); stopped = time.Now() })
	loops.Go(func() { n.dispatch.Run(ctx, draining) })
	loops.Go(func() { n.recorder.Run(ctx, draining) })
	loops.Go(func() { n.flushing.Run(ctx, draining) })
	loops.Go(func() { n.streams.Watch(ctx) })
	loops.Go(func() { n.database.Run(ctx) })
	loops.Go(func() { n.lead(ctx) })
	loops.Go(func() { n.events.Run(ctx) })
	loops.Go(func() { n.events.RunFresh(ctx) })
	loops.Go(func() { n.letters.PublishDeadLetters(ctx) })
	loops.Go(func() { n.letters.ReadDeadLetters(ctx, draining) })
	loops.Go(func() { n.letters.RemoveExhausted(ctx) })
	loops.Go(func() { n.runs.keepClear(ctx, n.cfg.beatOfLease()) })
	loops.Go(func() { n.watch.Run(ctx) })
	loops.Wait()
	stopBeating()
	heart.Wait()
	return stopped
}

// close hands back what the node still holds, within the rest of the grace plus closeTimeout.
func (n *Node) close(ctx context.Context, grace time.Time) error {
	left := max(time.Until(grace), 0) + closeTimeout
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), left)
	defer cancel()
	flushes, err := collectorstore.New(n.core.Store).EndFlushes(closing, n.core.Session())
	if err != nil {
		n.core.Log.Warn("give back what is being flushed; it stays with the session until that expires", zap.Error(err))
	}
	released, err := n.core.Settling.EndSession(closing, n.core.Session())
	if err != nil {
		return fmt.Errorf("orchestrator: stop: claims stay with the session until it expires: %w", err)
	}
	n.core.Log.Info("session ended", zap.Stringer("session", n.core.Session()),
		zap.Int("handed_back", released+flushes))
	n.core.WakeOthers()
	return nil
}

// closeTimeout limits the end of the session or of the lease; failing that, they expire.
const closeTimeout = 5 * time.Second

func unsubscribe(subs []*nats.Subscription) (failed error) {
	for _, sub := range subs {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			failed = errors.Join(failed, fmt.Errorf("orchestrator: unsubscribe from %s: %w", sub.Subject, err))
		}
	}
	return failed
}

// Runs returns what starts, changes and reruns runs.
func (n *Node) Runs() *Runs { return n.runs }

// Collectors returns what flushes collectors.
func (n *Node) Collectors() *flush.Flusher { return n.flushing }

// Endpoints returns the consumers of endpoints and their settings.
func (n *Node) Endpoints() *streams.Consumers { return n.consumers }

// DeadLetters returns the store of requests that no service could answer.
func (n *Node) DeadLetters() *streams.Letters { return n.letters }

// ErrConnectionClosed ends [Node.Run] when the program, or nats.go after its last attempt to reconnect, closed the
// connection to NATS permanently.
var ErrConnectionClosed = errors.New("the connection to NATS was closed permanently")

// whileConnected returns a context that ends with ctx, or when the connection to NATS is closed: the node would keep
// its session and the lease, and do nothing. It also ends when the streams belong to another installation, whose
// replies the node must not take. end frees its resources, and returns which of the two it was.
func (n *Node) whileConnected(ctx context.Context) (connected context.Context, end func() error) {
	connected, cancel := context.WithCancelCause(ctx)
	closed := n.core.NC.StatusChanged(nats.CLOSED)
	var watch sync.WaitGroup
	watch.Go(func() {
		if !n.core.NC.IsClosed() {
			select {
			case <-closed:
			case err := <-n.strangers:
				cancel(err)
				return
			case <-connected.Done():
				return
			}
		}
		cancel(ErrConnectionClosed)
	})
	return connected, func() error {
		cancel(nil)
		watch.Wait()
		n.core.NC.RemoveStatusListener(closed)
		if strangers, ok := errors.AsType[*stream.StrangerError](context.Cause(connected)); ok {
			return fmt.Errorf("orchestrator: %w", strangers)
		}
		if !errors.Is(context.Cause(connected), ErrConnectionClosed) {
			return nil
		}
		if err := n.core.NC.LastError(); err != nil {
			return fmt.Errorf("orchestrator: %w: %w", ErrConnectionClosed, err)
		}
		return fmt.Errorf("orchestrator: %w", ErrConnectionClosed)
	}
}
