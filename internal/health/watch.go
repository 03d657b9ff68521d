package health

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
)

// Defaults of Config.
const (
	// DefaultEvery is the maximum age of a report of `/health`. If a newer check takes long, a caller gets a previous
	// report up to 15 s old.
	DefaultEvery = 3 * time.Second
	// DefaultWaiting is no wait, but the time without progress of a run with work, and of requests that no service
	// takes, before it is reported; after six times that it is critical.
	DefaultWaiting  = 10 * time.Minute
	DefaultDiskFree = 10 << 30
)

const (
	// patience is how long a caller waits for a check while there is an older report.
	patience = 150 * time.Millisecond
	// staleAfter is the maximum age of that report. One without problems is not used, because a slow check is itself a
	// sign of one.
	staleAfter = 15 * time.Second
	// restTimeout limits a check apart from reading the database.
	restTimeout = time.Second
	// natsTimeout limits each request to NATS: a connection that was just cut looks intact and does not answer.
	natsTimeout = 3 * time.Second
)

// Config configures a Watch.
type Config struct {
	Log   *zap.Logger // nil: none
	Store *database.DB
	NC    *nats.Conn
	// Host names this server in conditions about it. Empty: the host's name.
	Host string
	// DataDir is where this server keeps files; empty: nowhere.
	DataDir string
	// StoresStreams means that JetStream keeps its streams there too.
	StoresStreams bool
	// Whole lists up to 10,000 conditions per kind, for programs; people need only the first few.
	Whole bool
	// Short lists resources that were exhausted when last needed; nil: unknown.
	Short func() []string

	Every    time.Duration // minimum time between checks; 0: DefaultEvery
	Waiting  time.Duration // how long a run may have work without progress; 0: DefaultWaiting
	DiskFree uint64        // bytes below which a disk may be near full; 0: DefaultDiskFree
	// DatabaseTimeout limits reading PostgreSQL in a check; 0: 2 s, or 5 s with Whole.
	DatabaseTimeout time.Duration
}

// Watch checks the system's health for all callers.
type Watch struct {
	cfg    Config
	limits health.Limits
	flying sync.WaitGroup

	mu     sync.Mutex
	last   *Report
	lastAt time.Time
	flight chan struct{} // closed when the check in progress ends; nil: none
	giveUp func()        // ends the check in progress
	again  bool          // known reports, and the one of the check in progress, are outdated

	// Used only by the check in progress: begins of stored conditions, whether they are saved, and marks, for times
	// without a database.
	seen    map[health.ConditionKey]time.Time
	unsaved bool
	marks   []health.KeptMark
}

// New returns a Watch that checks on demand.
func New(cfg Config) (*Watch, error) {
	if cfg.Store == nil || cfg.NC == nil {
		return nil, errors.New("health: Config.Store and Config.NC are needed")
	}
	cfg.Log = cmp.Or(cfg.Log, zap.NewNop())
	if cfg.Host == "" {
		cfg.Host, _ = os.Hostname() // shown only
	}
	cfg.Host = cmp.Or(cfg.Host, "this host")
	cfg.Every = cmp.Or(cfg.Every, DefaultEvery)
	cfg.Waiting = cmp.Or(cfg.Waiting, DefaultWaiting)
	cfg.DiskFree = cmp.Or(cfg.DiskFree, DefaultDiskFree)
	listed, timeout := health.DefaultListed, databaseTimeout
	if cfg.Whole {
		listed, timeout = wholeListed, wholeTimeout
	}
	cfg.DatabaseTimeout = cmp.Or(cfg.DatabaseTimeout, timeout)
	return &Watch{cfg: cfg, limits: health.Limits{Waiting: cfg.Waiting, Listed: listed},
		seen: map[health.ConditionKey]time.Time{}}, nil
}

// Report returns the result of a check of the last few seconds. The first check is waited for; later, slow ones are
// not, and the previous result is returned. Do not modify it. The error means that ctx ended.
func (w *Watch) Report(ctx context.Context) (*Report, error) {
	found, again, err := w.report(ctx)
	if again { // that check may have begun before
		found, _, err = w.report(ctx)
	}
	return found, err
}

// report is Report. again means that Again was called during the check.
func (w *Watch) report(ctx context.Context) (found *Report, again bool, err error) {
	older, flight := w.begin(ctx)
	if flight == nil {
		return older, false, nil
	}
	var late <-chan time.Time
	if older != nil {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-flight:
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.last, w.lastAt.IsZero(), nil
	case <-late:
		return older, false, nil
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// begin returns a recent report and no flight, or the check in progress, starting one if needed, with the previous
// report if usable.
func (w *Watch) begin(ctx context.Context) (older *Report, flight <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	age := time.Since(w.lastAt)
	if w.last != nil && age < w.cfg.Every {
		return w.last, nil
	}
	if w.flight == nil {
		w.flight = make(chan struct{})
		all := workqueue.InScope(context.WithoutCancel(ctx), workqueue.Scope{}) // for any caller
		w.flying.Go(func() { w.fly(all) })
	}
	if w.last != nil && age < staleAfter && w.last.Status != okStatus {
		older = w.last
	}
	return older, w.flight
}

func (w *Watch) fly(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.DatabaseTimeout+restTimeout)
	defer cancel()
	w.mu.Lock()
	w.giveUp = cancel
	w.mu.Unlock()
	found := w.look(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last, w.lastAt = found, time.Now(); w.again {
		w.lastAt = time.Time{}
	}
	w.again = false
	close(w.flight)
	w.flight = nil
}

// Run checks twice a minute until ctx ends, even without callers, because others learn from it what this server sees.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(seenEvery)
	defer tick.Stop()
	defer func() { // a stopping server does not wait for a slow check
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.giveUp != nil {
			w.giveUp()
		}
	}()
	for {
		if _, err := w.Report(ctx); err != nil {
			return // ctx ended
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Again makes the next caller wait for a new check, because marks have changed.
func (w *Watch) Again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastAt, w.again = time.Time{}, w.flight != nil
}

// Wait waits until no check is in progress, seconds at most.
func (w *Watch) Wait() { w.flying.Wait() }

type facts struct {
	host  string
	at    time.Time     // the database's clock, or ours without it
	db    *health.Facts // nil: no answer
	dbErr error
	nats  bool // connected
	// refused is what NATS refuses this server's user; may be empty.
	refused string
	fills   []fill
	filled  bool // fills is known
	// unheard are targets with work and without listeners; asked: this is known.
	unheard []NoListener
	asked   bool
	disk    *diskSpace // nil: unknown
	dataDir string
	short   []string
	limits  Config
}

const (
	// databaseTimeout limits reading PostgreSQL in a check; then it counts as unavailable.
	databaseTimeout = 2 * time.Second
	// wholeTimeout is the same with Whole, for which no user waits at a screen. Alerts report nothing until a check
	// succeeds.
	wholeTimeout = 5 * time.Second
	wholeListed  = 10_000
)

func (w *Watch) look(ctx context.Context) *Report {
	f := w.gather(ctx)
	conditions := judge(f)
	w.date(ctx, f, conditions)
	if f.db != nil {
		w.marks = f.db.Marks
	}
	w.watchMarks(ctx, f, conditions)
	open, muted := divide(w.marks, conditions)
	if f.db == nil {
		r := newReport(f.at, open, muted, nil)
		r.Unseen, r.Blind = f.unseen(), true
		return r
	}
	r := newReport(f.at, open, muted, f.db.More)
	r.Unseen, r.Cut = f.unseen(), f.db.Cut
	return r
}

// unseen are the kinds whose conditions a check may have missed.
func (f *facts) unseen() []health.Kind {
	kinds := []health.Kind{health.NATS, health.Disk, health.ResourceExhausted} // of other servers
	if !f.asked || f.db != nil && f.stalled() != nil {                         // then they are not reported
		kinds = append(kinds, health.NoListeners)
	}
	if !f.filled {
		kinds = append(kinds, health.StreamLimit)
	}
	return kinds
}

func (w *Watch) gather(ctx context.Context) *facts {
	f := &facts{host: w.cfg.Host, at: time.Now(), nats: w.cfg.NC.IsConnected(),
		refused: stream.UserRefused(w.cfg.NC), dataDir: w.cfg.DataDir, limits: w.cfg}
	var streams sync.WaitGroup
	streams.Go(func() { f.fills, f.filled = w.streams(ctx) })
	func() {
		asking, cancel := context.WithTimeout(ctx, w.cfg.DatabaseTimeout)
		defer cancel()
		// Conditions muted at the last check must not take places in the lists.
		limits := w.limits
		limits.Listed += min(len(w.marks), wholeListed)
		f.db, f.dbErr = health.New(w.cfg.Store).Health(asking, limits)
	}()
	if f.db != nil {
		if f.dbErr != nil { // what is known is shown
			w.cfg.Log.Warn("find parts to reset", zap.Error(f.dbErr))
		}
		f.at = f.db.At
		f.unheard, f.asked = w.unheard(ctx, f.db)
	}
	if w.cfg.DataDir != "" {
		f.disk = spaceAt(w.cfg.DataDir)
	}
	if w.cfg.Short != nil {
		f.short = w.cfg.Short()
	}
	streams.Wait()
	return f
}

const (
	// listenWait is how long services have to answer discovery.
	listenWait = 300 * time.Millisecond
	// asksAtOnce limits concurrent requests to JetStream.
	asksAtOnce = 8
)

// NoListener is a target with work and without listeners.
type NoListener struct {
	health.WorkingEndpoint

	Like string // a similar endpoint with listeners that may have been meant; may be empty
}

// unheard finds targets without listeners; known is false if that could not be checked.
func (w *Watch) unheard(ctx context.Context, db *health.Facts) (none []NoListener, known bool) {
	var services []health.WorkingEndpoint
	for _, e := range db.Working {
		switch kind, target := workqueue.TargetKind(e.Endpoint); kind {
		case workqueue.KindEndpoint:
			services = append(services, e)
		case workqueue.KindLocal:
			if !slices.ContainsFunc(db.Nodes, func(n health.NodeHealth) bool { return n.Has(target) }) {
				none = append(none, NoListener{WorkingEndpoint: e})
			}
		default: // every node can do it
		}
	}
	ctx, cancel := context.WithTimeout(ctx, natsTimeout)
	defer cancel()
	of, err := WithoutListeners(ctx, w.cfg.NC, services)
	return append(none, of...), err == nil
}

// WithoutListeners returns the endpoints that no service listens on. The error means that NATS did not say before ctx
// ended. A client that pulls from JetStream mostly saves the discovery of services; busy ones do not pull.
func WithoutListeners(ctx context.Context, nc *nats.Conn, all []health.WorkingEndpoint) (none []NoListener, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	pulled := make([]bool, len(all))
	asking, cancel := context.WithTimeout(ctx, listenWait)
	defer cancel()
	var asks errgroup.Group
	asks.SetLimit(asksAtOnce)
	for i, e := range all {
		asks.Go(func() error {
			if !e.Plain {
				consumer, err := js.Consumer(asking, wire.StreamWork, wire.ConsumerName(e.Endpoint))
				pulled[i] = err == nil && consumer.CachedInfo().NumWaiting > 0 // just fetched
			}
			return nil
		})
	}
	_ = asks.Wait()
	if !slices.Contains(pulled, false) {
		return nil, nil
	}
	heard, err := wire.Discover(ctx, nc, listenWait)
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return nil, err
	}
	for i, e := range all {
		if !pulled[i] && !slices.ContainsFunc(heard, func(l wire.Listener) bool { return l.Endpoint == e.Endpoint }) {
			none = append(none, NoListener{e, wire.Nearest(e.Endpoint, heard)})
		}
	}
	return none, nil
}
