package health

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
)

// Defaults of Config.
const (
	// A caller of `/health` gets a report of the last 3 s; a look that takes longer is waited for so long if the
	// report before is younger than 15 s, which is given then.
	DefaultEvery = 3 * time.Second
	// Not a wait: a run that has work and gets none of it done for so long is told of, requests that no one takes
	// also; after six times that it is critical.
	DefaultWaiting  = 10 * time.Minute
	DefaultDiskFree = 10 << 30
)

const (
	// patience is how long a caller waits for a look while there is an older report.
	patience = 150 * time.Millisecond
	// staleAfter is how old that one may be. One that says that all is well is not given then: a look that takes long is
	// itself a sign that it is not.
	staleAfter = 15 * time.Second
	// restTimeout bounds what a look does beside reading the database.
	restTimeout = time.Second
	// natsTimeout bounds each thing that NATS is asked: a connection that was just cut looks whole, and does not answer.
	natsTimeout = 3 * time.Second
)

// Config is what a Watch looks at.
type Config struct {
	Log   *zap.Logger // nil: none
	Store *database.DB
	NC    *nats.Conn
	// Host names this server in conditions about it. Empty: the host's name.
	Host string
	// DataDir is where this server keeps files; empty: nowhere.
	DataDir string
	// StoresStreams says that JetStream keeps its streams there, too.
	StoresStreams bool
	// Whole has reports name everything, up to 10,000 conditions of each kind, for programs; people want the first few.
	Whole bool
	// Short lists what was used up when the node last needed it; nil: nothing is known.
	Short func() []string

	Every    time.Duration // between two looks at the least; zero: DefaultEvery
	Waiting  time.Duration // how long a run may have work and get none done; zero: DefaultWaiting
	DiskFree uint64        // bytes below which a disk may be near full; zero: DefaultDiskFree
	// DatabaseTimeout is how long PostgreSQL may take in a look; zero: 2 s, and 5 s when reports are whole.
	DatabaseTimeout time.Duration
}

// Watch looks after the system's health for all who ask.
type Watch struct {
	cfg    Config
	limits health.Limits
	flying sync.WaitGroup

	mu     sync.Mutex
	last   *Report
	lastAt time.Time
	flight chan struct{} // closed when the look in progress ends; nil: none is
	giveUp func()        // ends the look in progress
	again  bool          // what is known, and what the look in progress finds, is not news any more

	// Of the look in progress alone: since when, of what was kept, and whether the table knows that; and what people said,
	// for while there is no database.
	seen    map[health.ConditionKey]time.Time
	unsaved bool
	marks   []health.KeptMark
}

// New returns a Watch, which looks when it is asked.
func New(cfg Config) (*Watch, error) {
	if cfg.Store == nil || cfg.NC == nil {
		return nil, errors.New("health: Config.Store and Config.NC are needed")
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Host == "" {
		cfg.Host, _ = os.Hostname() // shown to people only
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

// Report returns what a look has found within the last few seconds. The first one takes as long as it takes; after
// that, one that takes long is not waited for, and what was found before is returned. Do not change it. The error is
// that ctx ended.
func (w *Watch) Report(ctx context.Context) (*Report, error) {
	found, again, err := w.report(ctx)
	if again { // that look may have begun before
		found, _, err = w.report(ctx)
	}
	return found, err
}

// report is Report. again says that Again was called while the look was in progress.
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

// begin returns a report that is young enough, and no flight; or the look in progress, which it starts if there is
// none, with the report before it if that will do.
func (w *Watch) begin(ctx context.Context) (older *Report, flight <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	age := time.Since(w.lastAt)
	if w.last != nil && age < w.cfg.Every {
		return w.last, nil
	}
	if w.flight == nil {
		w.flight = make(chan struct{})
		w.flying.Go(func() { w.fly(context.WithoutCancel(ctx)) })
	}
	if w.last != nil && age < staleAfter && w.last.Status != okStatus {
		older = w.last
	}
	return older, w.flight
}

// fly looks, for everybody who waits.
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

// Run looks twice a minute until ctx ends, also when no one asks: others learn by it what this server sees of itself.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(seenEvery)
	defer tick.Stop()
	defer func() { // a look that takes long is not waited for when the server stops
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.giveUp != nil {
			w.giveUp()
		}
	}()
	for {
		if _, err := w.Report(ctx); err != nil {
			return // ctx has ended
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Again has the next who asks wait for a new look: what people say of conditions has changed.
func (w *Watch) Again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastAt, w.again = time.Time{}, w.flight != nil
}

// Wait returns when no look is in progress, which takes seconds at most.
func (w *Watch) Wait() { w.flying.Wait() }

// facts is all that a look has found out.
type facts struct {
	host  string
	at    time.Time     // the database's clock, or ours without it
	db    *health.Facts // nil: it does not answer
	dbErr error
	nats  bool // connected
	// refused is what NATS refuses this server's user; empty: nothing.
	refused string
	fills   []fill
	filled  bool // it is known how full the streams are
	// unheard names what runs have work for and no one does; asked says that this is known.
	unheard []unheard
	asked   bool
	disk    *diskSpace // nil: not known
	dataDir string
	short   []string
	limits  Config
}

const (
	// PostgreSQL in a look, and in one for alerts, which names everything; then it counts as away, and alerts tell
	// nothing until a look gets through. The rest of a look.
	databaseTimeout = 2 * time.Second
	// wholeTimeout is the same of a look that names everything, which no one waits for in front of a screen.
	wholeTimeout = 5 * time.Second
	wholeListed  = 10_000
)

// look reads all there is to know and judges it.
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

// unseen are the kinds of which a look may have missed conditions.
func (f *facts) unseen() []health.Kind {
	kinds := []health.Kind{health.NATS, health.Disk, health.ResourceExhausted} // of other servers
	if !f.asked || f.db != nil && f.stalled() != nil {                         // then nothing is said of them
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
		// What was muted at the last look takes no one's place in the lists.
		limits := w.limits
		limits.Listed += min(len(w.marks), wholeListed)
		f.db, f.dbErr = health.New(w.cfg.Store).Health(asking, limits)
	}()
	if f.db != nil {
		if f.dbErr != nil { // what is known is shown
			w.cfg.Log.Warn("look for parts to reset", zap.Error(f.dbErr))
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
