// Package start starts runs and takes their items, and takes failed loads back.
package start

import (
	"context"
	"time"

	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// meter measures what is loaded.
type meter interface {
	// Loaded is told of items that were read, and of their bytes, as they are stored.
	Loaded(items, bytes int)
}

// rechecker acts on what became due with new settings of runs.
type rechecker interface {
	Recheck(ctx context.Context, runs []workqueue.RunID)
}

// Starter starts runs, and takes their items.
type Starter struct {
	node      *kernel.Kernel
	events    kernel.Announcer
	runs      rechecker
	meter     meter
	uncleared runSet // failed loads of which something may be left
}

// New returns what starts runs.
func New(k *kernel.Kernel, events kernel.Announcer, runs rechecker, meter meter) *Starter {
	return &Starter{node: k, events: events, runs: runs, meter: meter}
}

// Start loads a run and sets nodes to work on it. See [start.Store.Load].
func (s *Starter) Start(ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error,
) (start.Loaded, error) {
	req.Session = s.node.Session()
	loaded, err := start.New(s.node.Store).Load(ctx, req, counted(s.meter, next))
	s.noteUncleared(err)
	if err == nil {
		s.events.Announce(loaded.Completions, time.Time{})
		s.node.Spread()
	}
	return loaded, err
}

// OpenRun makes a run that takes items until it is sealed. See [start.Store.OpenRun].
func (s *Starter) OpenRun(ctx context.Context, req start.OpenRequest) (start.Opened, error) {
	opened, err := start.New(s.node.Store).OpenRun(ctx, req)
	if err == nil {
		s.node.Spread()
	}
	return opened, err
}

// Add appends items to an open run. See [start.Store.Add].
func (s *Starter) Add(ctx context.Context, req start.AddRequest) (start.Added, error) {
	if read := req.Items; read != nil {
		req.Items = func() (func(*start.LoadItem) error, error) {
			next, err := read()
			return counted(s.meter, next), err
		}
	}
	added, err := start.New(s.node.Store).Add(ctx, req)
	if err == nil && !added.Existing {
		s.node.Spread() // blocks may have become full
	}
	return added, err
}

// SealRun ends the adding of items to an open run. See [start.Store.SealRun].
func (s *Starter) SealRun(ctx context.Context, req start.SealRequest) (start.Sealed, error) {
	sealed, err := start.New(s.node.Store).SealRun(ctx, req)
	if err == nil {
		s.events.Announce(sealed.Completions, time.Time{})
		s.runs.Recheck(ctx, []workqueue.RunID{req.Run})
		s.node.Spread()
	}
	return sealed, err
}

// loadedAtOnce is how many items are counted together.
const loadedAtOnce = 1000

// counted has a meter told of the items that are read.
func counted(m meter, next func(*start.LoadItem) error) func(*start.LoadItem) error {
	items, size := 0, 0
	return func(item *start.LoadItem) error {
		err := next(item)
		if err == nil {
			items, size = items+1, size+len(item.Payload)
		}
		if items > 0 && (err != nil || items == loadedAtOnce) {
			m.Loaded(items, size)
			items, size = 0, 0
		}
		return err
	}
}
