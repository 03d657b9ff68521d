// Package live sends watchers of runs the changes as they happen.
//
// A [Hubs] has one hub per watched run. The hub polls PostgreSQL a few times a second for changed blocks, reads
// these, compares them with the previous state, and publishes the difference as ranges of items with their new state.
// All watchers share it, so a thousand cost the database as much as one; without watchers it does nothing.
//
// Guarantees: a client that starts to watch, then reads the planes, and then applies all changes in order, ends with
// the true state. This holds even for changes that come and go between two polls: a block that comes to rest is sent
// again in full. A disconnected watcher resumes where it was, or, after too long, must reread the planes. A
// slow watcher gets merged changes, not a queue; memory for watchers is bounded. Database outages are reported, and
// their ends. A watcher ends with its context or [Hubs.Close].
//
// Not its job: HTTP and permissions.
//
// A Hubs is safe for concurrent use; a [Watcher] belongs to one goroutine.
package live

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

type hub struct {
	hubs  *Hubs
	run   workqueue.RunID
	epoch string // of its event IDs

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when there is something to send
	err      error         // why it ended
	seq      uint64        // of the last event
	ring     ring
	views    map[string]*view
	watchers int
	items    int64
	marks    map[workqueue.Block]int64
	resting  map[workqueue.Block]time.Time // recently changed blocks, and when the change was seen
	runMark  int64
	moves    uint64 // number of observed changes
	ended    bool
	document document
	over     uint64 // event number of the published end; 0: not yet
	outage   *Database
	outageAt uint64 // event number of its last change

	stop    context.CancelFunc // stops the loops; nil: not running
	stopped chan struct{}      // closed when they have ended
	timer   *time.Timer        // until it is dropped
	hurry   chan struct{}      // a view must be loaded
}

type document struct {
	json  []byte
	seq   uint64
	moves uint64 // it includes all changes up to this one
}

// Database says whether PostgreSQL responds.
type Database struct {
	OK     bool      `json:"ok" doc:"it answers again"`
	Since  time.Time `json:"since"`
	Detail string    `json:"detail,omitempty" doc:"what is wrong; what is shown may be out of date"`
}

func (h *hub) enter(names []string) *Watcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, unknown := &Watcher{hub: h, views: names}, false
	for _, name := range names {
		if h.views[name] == nil {
			h.views[name] = &view{}
		}
		h.views[name].watchers++
		unknown = unknown || !h.views[name].loaded
	}
	h.watchers++
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if h.stop == nil {
		h.start()
	}
	if unknown {
		poke(h.hurry)
	}
	return w
}

// start runs the loops after the previous ones have ended, without their outdated state. The caller holds the lock.
func (h *hub) start() {
	h.document, h.over, h.outage, h.outageAt = document{}, 0, nil, 0
	ctx, cancel := context.WithCancel(context.Background())
	before, stopped := h.stopped, make(chan struct{})
	h.stop, h.stopped = cancel, stopped
	go func() {
		defer close(stopped)
		if before != nil {
			<-before
		}
		var both sync.WaitGroup
		kick := make(chan struct{}, 1)
		both.Go(func() { h.look(ctx, kick) })
		both.Go(func() { h.keepDocument(ctx, kick) })
		both.Wait()
	}()
}

func (h *hub) leave(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		v := h.views[name]
		v.watchers--
		v.idle = time.Now()
		if v.watchers == 0 && !v.loaded {
			delete(h.views, name)
		}
	}
	h.watchers--
	if h.watchers > 0 || h.stop == nil {
		return
	}
	h.stop()
	h.stop = nil
	h.timer = time.AfterFunc(DefaultLinger, func() { h.hubs.forget(h) })
}

func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers == 0
}

func (h *hub) remembers() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.items * int64(len(h.views))
}

// shed drops views without watchers, and reports whether none are left.
func (h *hub) shed() (idle bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, v := range h.views {
		if v.watchers == 0 {
			delete(h.views, name)
		}
	}
	return h.watchers == 0
}

func (h *hub) close() {
	h.mu.Lock()
	if h.timer != nil {
		h.timer.Stop()
	}
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
	stopped := h.stopped
	h.fail(ErrClosed)
	h.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
}

// fail ends all watchers. The caller holds the lock.
func (h *hub) fail(err error) {
	if h.err == nil {
		h.err = err
		h.wake()
	}
}

func (h *hub) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) next() uint64 {
	h.seq++
	return h.seq
}

func (h *hub) ready(ctx context.Context, w *Watcher, last string) error {
	for {
		h.mu.Lock()
		known := !slices.ContainsFunc(w.views, func(name string) bool { return !h.views[name].loaded })
		err, changed := h.err, h.changed
		if err == nil && !known && h.outage != nil && !h.outage.OK {
			err = &OutageError{h.outage.Detail}
		}
		if err == nil && known {
			w.begin(last)
		}
		h.mu.Unlock()
		if err != nil || known {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// OutageError is returned while the database does not respond.
type OutageError struct{ Detail string }

func (e *OutageError) Error() string { return e.Detail }

// Source is what a hub needs of the store.
type Source interface {
	ItemsOf(ctx context.Context, run workqueue.RunID, steps []string) (int64, error)
	Marks(ctx context.Context, run workqueue.RunID) (inspect.RunMarks, error)
	States(ctx context.Context, run workqueue.RunID, steps []string, blocks []workqueue.Block,
		f func(inspect.BlockStates) error) error
}

var (
	// ErrClosed ends the watchers of a stopping server.
	ErrClosed = errors.New("the server is stopping")
	// ErrTooMuch is returned when the server's limit on watched items is reached.
	ErrTooMuch = errors.New("too many items are watched on this server; watch fewer steps, or try again later")
)

// Defaults of Config.
const (
	// DefaultPollInterval is the time between polls of a running run, DefaultRestedInterval of one that ended;
	// longer when polls are slow: `easeFactor` times their duration.
	DefaultPollInterval   = 250 * time.Millisecond
	DefaultRestedInterval = time.Second
	// DefaultSettle is how long a block must rest before it is sent in full, for clients that read it between two polls.
	DefaultSettle = 2 * time.Second
	// DefaultLinger is how long a hub without watchers keeps its state for returning ones, without polling.
	DefaultLinger   = 30 * time.Second
	DefaultMaxItems = 256 << 20
)

// Config configures the hubs of a server. A zero field means its default.
type Config struct {
	Log *zap.Logger // nil: none

	// Document returns a run as JSON.
	Document func(ctx context.Context, run workqueue.RunID) ([]byte, error)
	// Explain describes a database error for users.
	Explain func(err error) string

	PollInterval   time.Duration // between polls of a running run
	RestedInterval time.Duration // and of one that ended
	Settle         time.Duration // a block without changes for that long is sent in full
	MaxItems       int64         // bytes of state: one per watched item and step
}

func (c Config) withDefaults() Config {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if c.Explain == nil {
		c.Explain = error.Error
	}
	c.PollInterval = cmp.Or(c.PollInterval, DefaultPollInterval)
	c.RestedInterval = cmp.Or(c.RestedInterval, DefaultRestedInterval)
	c.Settle = cmp.Or(c.Settle, DefaultSettle)
	c.MaxItems = cmp.Or(c.MaxItems, DefaultMaxItems)
	return c
}

// Hubs is the hubs of a server.
type Hubs struct {
	source Source
	config Config

	mu     sync.Mutex
	hubs   map[workqueue.RunID]*hub
	closed bool
}

// New returns Hubs without watchers.
func New(source Source, config Config) (*Hubs, error) {
	if source == nil || config.Document == nil {
		return nil, errors.New("live: a source, and a function that makes documents, are needed")
	}
	return &Hubs{source: source, config: config.withDefaults(), hubs: map[workqueue.RunID]*hub{}}, nil
}

// Watch starts watching a run. When it returns, changes of the views are tracked: data read after that, with the
// watcher's changes applied, is the true state. Views are names of steps; an empty one means all steps together. last
// is the ID of the last event seen, for a returning client.
func (h *Hubs) Watch(ctx context.Context, run workqueue.RunID, views []string, last string) (*Watcher, error) {
	items, err := h.source.ItemsOf(ctx, run, views)
	if err != nil {
		return nil, err
	}
	one, w, err := h.join(run, items, views)
	if err != nil {
		return nil, err
	}
	if err := one.ready(ctx, w, last); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (h *Hubs) join(run workqueue.RunID, items int64, views []string) (*hub, *Watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, ErrClosed
	}
	one := h.hubs[run]
	if one == nil {
		one = &hub{
			hubs: h, run: run, items: items, epoch: uuid.NewString(), changed: make(chan struct{}),
			views: map[string]*view{}, marks: map[workqueue.Block]int64{},
			resting: map[workqueue.Block]time.Time{}, hurry: make(chan struct{}, 1),
		}
		h.hubs[run] = one
	}
	w := one.enter(views)
	if h.remembered() > h.config.MaxItems {
		h.shed()
	}
	if h.remembered() > h.config.MaxItems {
		w.Close()
		return nil, nil, ErrTooMuch
	}
	return one, w, nil
}

func (h *Hubs) remembered() (items int64) {
	for _, one := range h.hubs {
		items += one.remembers()
	}
	return items
}

// shed drops state kept only for returning watchers. The caller holds the lock.
func (h *Hubs) shed() {
	for run, one := range h.hubs {
		if one.shed() {
			delete(h.hubs, run)
		}
	}
}

func (h *Hubs) forget(one *hub) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hubs[one.run] == one && one.idle() {
		delete(h.hubs, one.run)
	}
}

// Close ends all watchers and waits until the database is no longer polled. It may be called twice.
func (h *Hubs) Close() {
	h.mu.Lock()
	h.closed = true
	all := make([]*hub, 0, len(h.hubs))
	for run, one := range h.hubs {
		all = append(all, one)
		delete(h.hubs, run)
	}
	h.mu.Unlock()
	for _, one := range all {
		one.close()
	}
}

type ring struct {
	entries []entry // oldest first
	numbers int     // total of all entries
	dropped uint64  // changes up to this one are dropped
}

type entry struct {
	seq     uint64
	view    string
	changes Changes
	lost    bool // too many to send: the planes must be reread
}

const (
	// maxKept limits the numbers in a ring: 4 MB.
	maxKept    = 1 << 20
	maxEntries = 4096
	// maxTold limits the numbers of an entry: beyond it, rereading the planes takes fewer bytes.
	maxTold = maxKept / 4
)

func (r *ring) add(e entry) {
	if len(e.changes) > maxTold {
		e.changes, e.lost = nil, true
	}
	r.entries = append(r.entries, e)
	r.numbers += len(e.changes)
	drop := 0
	for r.numbers > maxKept || len(r.entries)-drop > maxEntries {
		r.numbers -= len(r.entries[drop].changes)
		r.dropped = r.entries[drop].seq
		r.entries[drop] = entry{}
		drop++
	}
	r.entries = r.entries[drop:]
}

// after returns a view's changes after seq. whole is false if some were dropped.
func (r *ring) after(seq uint64, view string) (all []Changes, whole bool) {
	if seq < r.dropped {
		return nil, false
	}
	for i := len(r.entries) - 1; i >= 0 && r.entries[i].seq > seq; i-- {
		e := &r.entries[i]
		if e.view != view {
			continue
		}
		if e.lost {
			return nil, false
		}
		all = append(all, e.changes)
	}
	return all, true
}
