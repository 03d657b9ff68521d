package live

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
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

// enter counts a watcher in, and sees to it that somebody looks.
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

// leave counts a watcher out. Nobody looks for nobody.
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

// shed forgets what nobody watches, and reports whether nobody watches anything.
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
		h.tell()
	}
}

// tell wakes the watchers. The lock is held.
func (h *hub) tell() {
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
