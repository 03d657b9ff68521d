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

// Event is an event for a watcher.
type Event struct {
	ID   string // to resume from; empty: unchanged
	Name string
	Data []byte // JSON
}

// Names of events.
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
	Resumed bool   `json:"resumed,omitempty" doc:"it continues after Last-Event-ID; nothing must be read again"`
}

// Delta is the changes of one step.
type Delta struct {
	Step    string  `json:"step" doc:"its name; empty: over all steps"`
	Changes Changes `json:"changes" doc:"repeated ordinal, count, state: items from ordinal on, now in state"`
}

// Watcher watches a run.
type Watcher struct {
	hub    *hub
	views  []string
	once   sync.Once
	seq    uint64 // all changes up to this one were sent
	first  []Event
	told   uint64 // number of the sent document
	over   uint64 // number of the sent end
	outage uint64
	met    bool // the state of the database was sent, or needed no event
}

// begin resumes a watcher or starts it from now. The caller holds the hub's lock.
func (w *Watcher) begin(last string) {
	h := w.hub
	hello := Hello{Epoch: h.epoch}
	w.seq = h.seq
	at := strings.LastIndexByte(last, '-') // the last one: epochs contain hyphens
	seq, err := strconv.ParseUint(last[at+1:], 10, 64)
	if at >= 0 && err == nil && last[:at] == h.epoch && seq <= h.seq && h.recalls(seq, w.views) {
		w.seq, hello.Resumed = seq, true
	}
	w.first = append(w.first, w.event(EventHello, hello))
	if last != "" && !hello.Resumed {
		w.first = append(w.first, w.event(EventResync, struct{}{}))
	}
}

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
	text, _ := json.Marshal(data) // plain structs
	return Event{Name: name, Data: text, ID: w.hub.epoch + "-" + strconv.FormatUint(w.seq, 10)}
}

// Next waits for events and returns them. Any error but ctx's is final.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) {
	return next(ctx, w.pending)
}

// next waits until there is something pending; changed is closed when to check again.
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

// pending returns events to send. Only the last has the new ID, so that a client interrupted before it gets all
// again.
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

// deltas merges the changes not sent yet. The caller holds the hub's lock.
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

func (c *cells) set(states []byte) {
	c.size = len(states)
	if len(states) == 0 {
		c.bytes = nil
		return
	}
	keep := states
	if !slices.ContainsFunc(states, func(s byte) bool { return s != states[0] }) { // all alike
		keep = states[:1]
	}
	if len(keep) != len(c.bytes) {
		c.bytes = slices.Clone(keep)
		return
	}
	copy(c.bytes, keep)
}

// Changes is a flat list of ordinal, count, state: count items starting at the ordinal are now in that state. Apply
// in order.
type Changes []int32

const changeLen = 3 // numbers per change

// difference appends the changes since the previous poll of a block. It joins changes over equal items between them,
// since repeating their state is harmless.
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
	// documentPause is the minimum time between two documents of a run.
	documentPause = time.Second / 2
	// documentAge is the maximum while a run is in progress: its rate and warnings change on their own.
	documentAge = 3 * time.Second
)

// keepDocument makes a document of the run immediately, after each change, and periodically.
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

// age fires when the document is old; never for a run that ended.
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
