package live

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Event is one thing that a watcher is told.
type Event struct {
	ID   string // what to come back with; empty: as before
	Name string
	Data []byte // JSON
}

// The names of events.
const (
	EventHello    = "hello"
	EventRun      = "run"
	EventDelta    = "delta"
	EventResync   = "resync"
	EventEnd      = "end"
	EventDatabase = "database"
)

// Hello is the first event.
type Hello struct {
	Epoch   string `json:"epoch" doc:"if it changes, reread everything"`
	Resumed bool   `json:"resumed,omitempty" doc:"it goes on after Last-Event-ID; nothing must be read again"`
}

// Delta is what has changed at one step.
type Delta struct {
	Step    string  `json:"step" doc:"its name; empty: over all steps"`
	Changes Changes `json:"changes" doc:"repeated ordinal, count, state: items from ordinal on, now in state"`
}

// Watcher is one who watches a run.
type Watcher struct {
	hub    *hub
	views  []string
	once   sync.Once
	seq    uint64 // all changes up to this one were told
	first  []Event
	told   uint64 // the document
	over   uint64 // the end
	outage uint64
	met    bool // it was told how things are with the database, or that was nothing to tell of
}

// begin has the watcher start where it was, or else from now. The hub's lock is held.
func (w *Watcher) begin(last string) {
	h := w.hub
	hello := Hello{Epoch: h.epoch}
	w.seq = h.seq
	epoch, number, here := strings.Cut(reverseCut(last), "\x00")
	seq, err := strconv.ParseUint(number, 10, 64)
	if here && err == nil && epoch == h.epoch && seq <= h.seq && h.recalls(seq, w.views) {
		w.seq, hello.Resumed = seq, true
	}
	w.first = append(w.first, w.event(EventHello, hello))
	if last != "" && !hello.Resumed {
		w.first = append(w.first, w.event(EventResync, struct{}{}))
	}
}

// reverseCut puts a NUL in the place of the last hyphen: epochs have some themselves.
func reverseCut(id string) string {
	if at := strings.LastIndexByte(id, '-'); at >= 0 {
		return id[:at] + "\x00" + id[at+1:]
	}
	return id
}

// recalls reports whether all changes of views after one are known. The lock is held.
func (h *hub) recalls(seq uint64, views []string) bool {
	for _, name := range views {
		if seq < h.views[name].since {
			return false
		}
		if _, whole := h.ring.after(seq, name); !whole {
			return false
		}
	}
	return true
}

func (w *Watcher) event(name string, data any) Event {
	text, _ := json.Marshal(data) // of plain structs
	return Event{Name: name, Data: text, ID: w.hub.epoch + "-" + strconv.FormatUint(w.seq, 10)}
}

// Next waits for something to tell and returns it. An error that is not ctx's means that no more will come.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) {
	return next(ctx, w.pending)
}

// next waits until there is something pending. What changed is closed when it is worth another look.
func next(
	ctx context.Context, pending func() (events []Event, changed <-chan struct{}, err error),
) ([]Event, error) {
	for {
		events, changed, err := pending()
		if len(events) > 0 || err != nil {
			return events, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
		}
	}
}

// pending is what there is to tell. Only the last event has the new id: who is cut off before it gets all again.
func (w *Watcher) pending() (events []Event, changed <-chan struct{}, err error) {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, nil, h.err
	}
	events, w.first = w.first, nil
	if len(events) > 0 {
		return events, h.changed, nil
	}
	if h.outageAt > w.outage && (w.met || !h.outage.OK) {
		events = append(events, w.event(EventDatabase, h.outage))
	}
	w.outage, w.met = h.outageAt, true
	events = append(events, w.deltas()...)
	w.seq = h.seq
	if h.document.seq > w.told {
		w.told = h.document.seq
		e := w.event(EventRun, nil)
		e.Data = h.document.json
		events = append(events, e)
	}
	if h.over > w.over {
		w.over = h.over
		events = append(events, w.event(EventEnd, struct{}{}))
	}
	for i := range len(events) - 1 {
		events[i].ID = ""
	}
	if len(events) > 0 {
		events[len(events)-1].ID = w.event("", nil).ID
	}
	return events, h.changed, nil
}

// deltas puts together what has changed since the watcher was last told. The hub's lock is held.
func (w *Watcher) deltas() (events []Event) {
	for _, name := range w.views {
		all, whole := w.hub.ring.after(w.seq, name)
		if !whole {
			return []Event{w.event(EventResync, struct{}{})}
		}
		if len(all) == 0 {
			continue
		}
		changes := all[0]
		if len(all) > 1 {
			changes = w.hub.views[name].merge(all)
		}
		events = append(events, w.event(EventDelta, Delta{name, changes}))
	}
	return events
}

// Close ends the watch. It may be called twice.
func (w *Watcher) Close() { w.once.Do(func() { w.hub.leave(w.views) }) }

// cells is one byte for each item of a block. A block whose items are all alike takes one byte in all.
type cells struct {
	size  int
	bytes []byte // of length size, or 1
}

func (c *cells) at(i int) byte {
	if len(c.bytes) == 1 {
		return c.bytes[0]
	}
	return c.bytes[i]
}

// set keeps a copy of states.
func (c *cells) set(states []byte) {
	c.size = len(states)
	if len(states) == 0 {
		c.bytes = nil
		return
	}
	keep := states
	if uniform(states) {
		keep = states[:1]
	}
	if len(keep) != len(c.bytes) {
		c.bytes = slices.Clone(keep)
		return
	}
	copy(c.bytes, keep)
}

func uniform(states []byte) bool {
	for _, s := range states[1:] {
		if s != states[0] {
			return false
		}
	}
	return true
}

// Changes is a flat list of ordinal, count, state: so many items from that ordinal on are now in that state. Applied in
// order, from the first to the last.
type Changes []int32

const changeLen = 3 // numbers of one change

// difference appends what has changed from one look at a block to the next. Items between two changes that are in the
// same state join them: to say again where they are does no harm.
func (c *cells) difference(states []byte, first int32, changes Changes) Changes {
	for i := 0; i < len(states); {
		if i < c.size && c.at(i) == states[i] {
			i++
			continue
		}
		state, end := states[i], i+1
		for j := end; j < len(states) && states[j] == state; j++ {
			if j >= c.size || c.at(j) != state {
				end = j + 1
			}
		}
		changes = append(changes, first+int32(i), int32(end-i), int32(state))
		i = end
	}
	return changes
}

// whole appends where the items from lo to hi are.
func (c *cells) whole(lo, hi int, first int32, changes Changes) Changes {
	hi = min(hi, c.size)
	for i := lo; i < hi; {
		end := i + 1
		for end < hi && c.at(end) == c.at(i) {
			end++
		}
		changes = append(changes, first+int32(i), int32(end-i), int32(c.at(i)))
		i = end
	}
	return changes
}

const (
	// documentPause is the shortest time between two documents of a run.
	documentPause = time.Second / 2
	// documentAge is the longest while a run is in progress: its rate and its warnings change by themselves.
	documentAge = 3 * time.Second
)

// keepDocument makes a document of the run at once, whenever something has changed, and now and then.
func (h *hub) keepDocument(ctx context.Context, kick <-chan struct{}) {
	for {
		begun := time.Now()
		h.makeDocument(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(documentPause, easeFactor*time.Since(begun))):
		}
		select {
		case <-ctx.Done():
			return
		case <-kick:
		case <-h.age():
		}
	}
}

// age ends when a document has grown old: never that of a run that has ended.
func (h *hub) age() <-chan time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended && h.document.moves == h.moves {
		return nil
	}
	return time.After(documentAge)
}

func (h *hub) makeDocument(ctx context.Context) {
	h.mu.Lock()
	moves := h.moves
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	json, err := h.hubs.config.Document(ctx, h.run)
	if err != nil {
		if ctx.Err() == nil {
			h.hubs.config.Log.Warn("a run cannot be shown to its watchers", zap.Stringer("run", h.run), zap.Error(err))
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.document.moves = moves
	if !bytes.Equal(json, h.document.json) {
		h.document.json, h.document.seq = json, h.next()
	}
	h.wake()
}
