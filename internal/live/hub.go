// Package live tells watchers of runs what changes while they look on.
//
// A [Hubs] has one hub for each run that someone watches. The hub asks PostgreSQL a few times a second which blocks
// have changed, reads those, compares them with what it saw before, and publishes the difference as runs of items that
// are now in a state. All watchers share it, so a thousand of them cost the database what one does; without a watcher
// nothing is asked.
//
// Guarantees: whoever begins to watch, then reads the planes, and then applies every change in order, ends at the
// truth, also when changes come and go between two looks: a block that comes to rest is told again as a whole. A
// watcher that was cut off goes on where it was if that is not too long ago, and is told to read the planes again if it
// is. A watcher that is slow gets changes put together, never a queue of them; what is kept for watchers is bounded. An
// outage of the database is told, and its end. A watcher ends when its context or [Hubs.Close] does.
//
// Not its job: HTTP, and who may watch.
//
// Concurrency: a Hubs is safe for concurrent use; a [Watcher] belongs to one goroutine.
package live

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// hub looks at one run for all who watch it.
type hub struct {
	hubs  *Hubs
	run   workqueue.RunID
	epoch string // of the ids that it gives out

	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, when there is something to tell
	err      error         // why it has ended
	seq      uint64        // of the last thing that was told
	ring     ring
	views    map[string]*view
	watchers int
	items    int64
	marks    map[workqueue.Block]int64
	resting  map[workqueue.Block]time.Time // blocks that have changed, and when they were last seen to
	runMark  int64
	moves    uint64 // how often anything was seen to have changed
	ended    bool
	document document
	over     uint64 // when it was told that the run has ended and all is said; 0: it is not
	outage   *Database
	outageAt uint64 // when that changed

	stop    context.CancelFunc // of the loops; nil: they do not run
	stopped chan struct{}      // closed when they have ended
	timer   *time.Timer        // to be forgotten
	hurry   chan struct{}      // a view is to be loaded
}

// document is the newest one of the run.
type document struct {
	json  []byte
	seq   uint64
	moves uint64 // it shows all changes up to this one
}

// Database says whether PostgreSQL answers.
type Database struct {
	OK     bool      `json:"ok" doc:"it answers again"`
	Since  time.Time `json:"since"`
	Detail string    `json:"detail,omitempty" doc:"what is wrong; what is shown may be out of date"`
}

func newHub(hubs *Hubs, run workqueue.RunID, items int64) *hub {
	return &hub{
		hubs: hubs, run: run, items: items, epoch: uuid.NewString(), changed: make(chan struct{}),
		views: map[string]*view{}, marks: map[workqueue.Block]int64{},
		resting: map[workqueue.Block]time.Time{}, hurry: make(chan struct{}, 1),
	}
}

// enter counts a watcher in, and sees to it that someone looks.
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

// start runs the loops, once those before have ended. What they knew of the run as a whole is out of date. The lock is
// held.
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

// leave counts a watcher out. No one looks for no one.
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
	h.timer = time.AfterFunc(h.hubs.config.Linger, func() { h.hubs.forget(h) })
}

func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers == 0
}

// remembers is how many items it keeps the state of.
func (h *hub) remembers() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.items * int64(len(h.views))
}

// shed forgets what no one watches, and reports whether no one watches anything.
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

// fail ends all watchers. The lock is held.
func (h *hub) fail(err error) {
	if h.err == nil {
		h.err = err
		h.wake()
	}
}

// wake wakes the watchers. The lock is held.
func (h *hub) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// next is the number of something that is to be told. The lock is held.
func (h *hub) next() uint64 {
	h.seq++
	return h.seq
}

// ready waits until the views of a watcher are known, and has it begin there.
func (h *hub) ready(ctx context.Context, w *Watcher, last string) error {
	for {
		h.mu.Lock()
		known, err, changed := h.knows(w.views), h.err, h.changed
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

// OutageError is returned when the database does not answer.
type OutageError struct{ Detail string }

func (e *OutageError) Error() string { return e.Detail }

// knows reports whether views are loaded. The lock is held.
func (h *hub) knows(names []string) bool {
	for _, name := range names {
		if !h.views[name].loaded {
			return false
		}
	}
	return true
}

// gone reports whether there is nothing to look at any more.
func gone(err error) bool { return errors.Is(err, workqueue.ErrNotFound) }

// Source is the store as a hub needs it.
type Source interface {
	ItemsOf(ctx context.Context, run workqueue.RunID, steps []string) (int64, error)
	Marks(ctx context.Context, run workqueue.RunID) (inspect.RunMarks, error)
	States(ctx context.Context, run workqueue.RunID, steps []string, blocks []workqueue.Block,
		f func(inspect.BlockStates) error) error
}

var (
	// ErrClosed ends the watchers of a server that stops.
	ErrClosed = errors.New("the server is stopping")
	// ErrTooMuch is returned to whoever would have a server remember more than it may.
	ErrTooMuch = errors.New("too many items are watched on this server; watch fewer steps, or try again later")
)

// Defaults of Config.
const (
	// Between two looks at a run that is watched, and at one that has ended; longer when a look takes long:
	// `easeFactor` times that.
	DefaultPollInterval   = 250 * time.Millisecond
	DefaultRestedInterval = time.Second
	// A block without changes is told as a whole, for who read it between two looks.
	DefaultSettle = 2 * time.Second
	// A hub that no one watches remembers what it saw, for who comes back; it asks for nothing meanwhile.
	DefaultLinger   = 30 * time.Second
	DefaultMaxItems = 256 << 20
)

// Config is what the hubs of a server need. A zero field means its default.
type Config struct {
	Log *zap.Logger // nil: none

	// Document returns a run as JSON, for its watchers.
	Document func(ctx context.Context, run workqueue.RunID) ([]byte, error)
	// Explain says for people what is wrong with the database.
	Explain func(err error) string

	PollInterval   time.Duration // between two looks at a run that moves
	RestedInterval time.Duration // and at one that has ended
	Settle         time.Duration // a block without changes for so long is told as a whole
	Linger         time.Duration // how long a hub that no one watches remembers what it has seen
	MaxItems       int64         // bytes to remember, at one for each item and step that is watched
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Explain == nil {
		c.Explain = error.Error
	}
	c.PollInterval = cmp.Or(c.PollInterval, DefaultPollInterval)
	c.RestedInterval = cmp.Or(c.RestedInterval, DefaultRestedInterval)
	c.Settle = cmp.Or(c.Settle, DefaultSettle)
	c.Linger = cmp.Or(c.Linger, DefaultLinger)
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

// New returns hubs that do nothing yet.
func New(source Source, config Config) (*Hubs, error) {
	if source == nil || config.Document == nil {
		return nil, errors.New("live: a source, and a function that makes documents, are needed")
	}
	return &Hubs{source: source, config: config.withDefaults(), hubs: map[workqueue.RunID]*hub{}}, nil
}

// Watch begins to watch a run. It returns once changes of the views are seen: what is read of the database from then
// on, and brought up to date by what the watcher says, is the truth. Views are names of steps; an empty one is all
// steps together. last is the id of the last event that the caller has seen, if it was here before.
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
		one = newHub(h, run, items)
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

// remembered is how many states of items are kept. The lock is held.
func (h *Hubs) remembered() (items int64) {
	for _, one := range h.hubs {
		items += one.remembers()
	}
	return items
}

// shed forgets what is only kept for who might come back. The lock is held.
func (h *Hubs) shed() {
	for run, one := range h.hubs {
		if one.shed() {
			delete(h.hubs, run)
		}
	}
}

// forget drops a hub that no one has watched for a while.
func (h *Hubs) forget(one *hub) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hubs[one.run] == one && one.idle() {
		delete(h.hubs, one.run)
	}
}

// Close ends all watchers, and returns when nothing is asked of the database any more. It may be called twice.
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

// ring keeps the newest changes of a hub, for watchers that are behind or come back.
type ring struct {
	entries []entry // the oldest first
	numbers int     // in all of them
	dropped uint64  // changes up to this one are gone
}

// entry is what one look brought for one view.
type entry struct {
	seq     uint64
	view    string
	changes Changes
	lost    bool // too much to be told: the planes are to be read again
}

const (
	// maxKept bounds the numbers in a ring: 4 MB.
	maxKept = 1 << 20
	// maxEntries bounds its entries.
	maxEntries = 4096
	// maxTold bounds the numbers of one entry: to read the planes again takes fewer bytes then.
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

// after returns what came after a change for a view. whole is false when some of it is gone.
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
