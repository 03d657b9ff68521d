package live

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

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
	ErrTooMuch = errors.New("too many items are watched at once on this server; watch fewer steps, or try again later")
)

// Defaults of Config.
const (
	// Between two looks at a run that is watched, and at one that has ended; longer when a look takes long:
	// `easeFactor` times that.
	DefaultPollInterval   = 250 * time.Millisecond
	DefaultRestedInterval = time.Second
	// A block without changes is told as a whole, for who read it between two looks.
	DefaultSettle = 2 * time.Second
	// A hub that nobody watches remembers what it saw, for who comes back; it asks for nothing meanwhile.
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
	Linger         time.Duration // how long a hub that nobody watches remembers what it has seen
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

// forget drops a hub that nobody has watched for a while.
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
