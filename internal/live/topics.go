package live

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// DefaultTopicInterval is the polling interval of a topic.
const DefaultTopicInterval = time.Second

// Topic is a document that is polled once for all its watchers.
type Topic struct {
	Name  string                                    // of its events
	Look  func(ctx context.Context) ([]byte, error) // returns JSON
	Every time.Duration                             // 0: DefaultTopicInterval
}

// Topics sends watchers each changed state. Topics without watchers are not polled.
type Topics struct {
	log     *zap.Logger
	explain func(error) string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when there is something to send
	all     map[string]*topic
	closed  bool
}

type topic struct {
	Topic

	json     []byte
	seq      uint64 // number of its changes
	outage   *Database
	outages  uint64 // number of changes of outage
	watchers int
	stop     context.CancelFunc // stops its loop; nil: not running
	stopped  chan struct{}      // closed when it ends
}

// NewTopics returns topics without watchers. explain describes a failed poll for users.
func NewTopics(log *zap.Logger, explain func(error) string, topics ...Topic) *Topics {
	log = cmp.Or(log, zap.NewNop())
	t := &Topics{log: log, explain: explain, changed: make(chan struct{}), all: map[string]*topic{}}
	for _, one := range topics {
		one.Every = cmp.Or(one.Every, DefaultTopicInterval)
		t.all[one.Name] = &topic{Topic: one}
	}
	return t
}

// Watch starts watching topics.
func (t *Topics) Watch(names []string) (*TopicWatcher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	w := &TopicWatcher{topics: t, told: map[*topic]told{}}
	for _, name := range names {
		one := t.all[name]
		if one == nil {
			return nil, fmt.Errorf("live: there is no topic %q", name)
		}
		if _, twice := w.told[one]; !twice {
			w.all = append(w.all, one)
			w.told[one] = told{}
		}
	}
	for _, one := range w.all {
		one.watchers++
		if one.stop == nil {
			t.start(one)
		}
	}
	return w, nil
}

// start runs a topic's loop after the previous one ends. The caller holds the lock.
func (t *Topics) start(one *topic) {
	ctx, cancel := context.WithCancel(context.Background())
	before, stopped := one.stopped, make(chan struct{})
	one.stop, one.stopped, one.json, one.outage = cancel, stopped, nil, nil
	go func() {
		defer close(stopped)
		if before != nil {
			<-before
		}
		for t.look(ctx, one) {
		}
	}()
}

func (t *Topics) look(ctx context.Context, one *topic) bool {
	begun := time.Now()
	within, cancel := context.WithTimeout(ctx, lookTimeout)
	text, err := one.Look(within)
	cancel()
	if ctx.Err() == nil {
		t.publish(one, text, err)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(max(one.Every, easeFactor*time.Since(begun))):
		return true
	}
}

func (t *Topics) publish(one *topic, text []byte, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := one.outage != nil && !one.outage.OK
	switch {
	case err != nil && out, err == nil && !out && bytes.Equal(text, one.json):
		return
	case err != nil:
		t.log.Warn("watchers get no updates: a poll failed", zap.String("topic", one.Name), zap.Error(err))
		one.outage = &Database{Since: time.Now(), Detail: t.explain(err)}
		one.outages++
	default:
		if out {
			one.outage = &Database{OK: true, Since: time.Now()}
			one.outages++
		}
		one.json = text
		one.seq++
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// Close ends all watchers and waits until polling ends. It may be called twice.
func (t *Topics) Close() {
	t.mu.Lock()
	t.closed = true
	var ends []chan struct{}
	for _, one := range t.all {
		if one.stop != nil {
			one.stop()
			one.stop = nil
		}
		if one.stopped != nil {
			ends = append(ends, one.stopped)
		}
	}
	close(t.changed)
	t.changed = make(chan struct{})
	t.mu.Unlock()
	for _, ended := range ends {
		<-ended
	}
}

type told struct{ seq, outages uint64 }

// TopicWatcher watches topics.
type TopicWatcher struct {
	topics *Topics
	once   sync.Once
	all    []*topic
	told   map[*topic]told
}

// Next waits until a topic has changed and returns its state. Any error but ctx's is final.
func (w *TopicWatcher) Next(ctx context.Context) ([]Event, error) {
	return next(ctx, w.pending)
}

func (w *TopicWatcher) pending() (events []Event, changed <-chan struct{}, err error) {
	t := w.topics
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil, ErrClosed
	}
	for _, one := range w.all {
		was := w.told[one]
		if one.outage != nil && one.outages > was.outages && (was.outages > 0 || !one.outage.OK) {
			text, err := json.Marshal(one.outage)
			if err != nil {
				return nil, nil, err
			}
			events = append(events, Event{Name: EventDatabase, Data: text})
			was.outages = one.outages
		}
		if one.json != nil && one.seq > was.seq {
			events = append(events, Event{Name: one.Name, Data: one.json})
			was.seq = one.seq
		}
		w.told[one] = was
	}
	return events, t.changed, nil
}

// Close ends the watch. It may be called twice.
func (w *TopicWatcher) Close() {
	w.once.Do(func() {
		w.topics.mu.Lock()
		defer w.topics.mu.Unlock()
		for _, one := range w.all {
			if one.watchers--; one.watchers == 0 && one.stop != nil {
				one.stop()
				one.stop = nil
			}
		}
	})
}

type view struct {
	loaded   bool
	since    uint64 // changes after this one are known
	watchers int
	idle     time.Time // when the last watcher left
	blocks   []cells
}

func first(b workqueue.Block) int32 { return int32(b) * bitfield.Size }

func (v *view) take(block workqueue.Block, states []byte, changes Changes) Changes {
	for int(block) >= len(v.blocks) {
		v.blocks = append(v.blocks, cells{})
	}
	c := &v.blocks[block]
	if v.loaded {
		changes = c.difference(states, first(block), changes)
	}
	c.set(states)
	return changes
}

// merge appends the current states of the items in several changes, once each.
func (v *view) merge(all []Changes) Changes {
	type span struct{ lo, hi int32 }
	var spans []span
	for _, changes := range all {
		for i := 0; i < len(changes); i += changeLen {
			spans = append(spans, span{changes[i], changes[i] + changes[i+1]})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	var out Changes
	for i := 0; i < len(spans); {
		s := spans[i]
		for i++; i < len(spans) && spans[i].lo <= s.hi; i++ {
			s.hi = max(s.hi, spans[i].hi)
		}
		for s.lo < s.hi {
			block := workqueue.Block(s.lo / bitfield.Size)
			from := s.lo - first(block)
			to := min(s.hi-first(block), bitfield.Size)
			if int(block) < len(v.blocks) {
				out = v.blocks[block].whole(int(from), int(to), first(block), out)
			}
			s.lo = first(block) + to
		}
	}
	return out
}
