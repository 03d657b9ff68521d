package orchestrator

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Runs starts, changes and reruns runs in the store, and notifies the nodes.
type Runs struct {
	node      *core.Core
	loads     loads
	events    core.Announcer
	uncleared runSet // failed loads that may have left data
}

// loads removes what failed loads have left. See [start.Store].
type loads interface {
	ClearLoad(ctx context.Context, run workqueue.RunID) (sealed bool, err error)
}

// Start loads a run and wakes the nodes. See [start.Store.Load].
func (r *Runs) Start(ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error,
) (start.Loaded, error) {
	req.Session = r.node.Session()
	loaded, err := start.New(r.node.Store).Load(ctx, req, counted(r.node.Meter, next))
	r.noteUncleared(err)
	if err == nil {
		r.events.Announce(loaded.Completions, time.Time{})
		r.node.NotifyChange()
	}
	return loaded, err
}

// OpenRun creates a run that takes items until it is sealed. See [start.Store.OpenRun].
func (r *Runs) OpenRun(ctx context.Context, req start.OpenRequest) (start.Opened, error) {
	opened, err := start.New(r.node.Store).OpenRun(ctx, req)
	if err == nil {
		r.node.NotifyChange()
	}
	return opened, err
}

// Add appends items to an open run. See [start.Store.Add].
func (r *Runs) Add(ctx context.Context, req start.AddRequest) (start.Added, error) {
	if read := req.Items; read != nil {
		req.Items = func() (func(*start.LoadItem) error, error) {
			next, err := read()
			return counted(r.node.Meter, next), err
		}
	}
	added, err := start.New(r.node.Store).Add(ctx, req)
	if err == nil && !added.Existing {
		r.node.NotifyChange() // blocks may have become full
	}
	return added, err
}

// SealRun closes an open run to new items. See [start.Store.SealRun].
func (r *Runs) SealRun(ctx context.Context, req start.SealRequest) (start.Sealed, error) {
	sealed, err := start.New(r.node.Store).SealRun(ctx, req)
	if err == nil {
		r.events.Announce(sealed.Completions, time.Time{})
		r.Recheck(ctx, []workqueue.RunID{req.Run})
		r.node.NotifyChange()
	}
	return sealed, err
}

// Pause holds runs on every node. See [control.Store.Pause].
func (r *Runs) Pause(ctx context.Context, by control.Control) (control.Controlled, error) {
	paused, err := control.New(r.node.Store).Pause(ctx, by)
	r.changed(ctx, err == nil, nil)
	return paused, err
}

// Resume ends holds. See [control.Store.Resume].
func (r *Runs) Resume(ctx context.Context, by control.Control, maxFailed *string) (control.Controlled, error) {
	resumed, err := control.New(r.node.Store).Resume(ctx, by, maxFailed)
	if err == nil {
		r.Recheck(ctx, resumed.Runs)
		r.node.NotifyChange()
	}
	return resumed, err
}

// Approve releases all items of runs that wait for it, or starts a step. See [control.Store.Approve].
func (r *Runs) Approve(ctx context.Context, by control.Control) (control.Controlled, error) {
	approved, err := control.New(r.node.Store).Approve(ctx, by)
	r.changed(ctx, len(approved.Runs) > 0, nil)
	return approved, err
}

// SetRun changes settings of a run. See [control.Store.SetRun].
func (r *Runs) SetRun(ctx context.Context, change control.RunChange) (control.RunChanged, error) {
	changed, err := control.New(r.node.Store).SetRun(ctx, change)
	if err == nil {
		r.Recheck(ctx, []workqueue.RunID{change.Run})
		r.node.NotifyChange()
	}
	return changed, err
}

// Cancel stops runs and removes their requests from the stream. See [control.Store.Cancel].
func (r *Runs) Cancel(ctx context.Context, by control.Control) (control.Cancelled, error) {
	cancelled, err := control.New(r.node.Store).Cancel(ctx, by)
	r.changed(ctx, len(cancelled.Runs) > 0, cancelled.Requests)
	return cancelled, err
}

// changed removes the requests that a change ended from the stream, and notifies all nodes, if there was one.
func (r *Runs) changed(ctx context.Context, found bool, ended []workqueue.Sent) {
	if found {
		core.RemoveRequests(ctx, r.node, ended)
		r.node.NotifyChange()
	}
}

// maxRechecked limits the runs checked per call; the leader checks the rest within a second.
const maxRechecked = 100

// Recheck applies the thresholds and canaries that came due while runs were held, or with new settings.
func (r *Runs) Recheck(ctx context.Context, runs []workqueue.RunID) {
	for _, run := range runs[:min(len(runs), maxRechecked)] {
		_, err := control.New(r.node.Store).CheckThreshold(ctx, run)
		if err == nil {
			_, err = control.New(r.node.Store).CheckFailFast(ctx, run)
		}
		if err == nil {
			_, err = control.New(r.node.Store).CheckCanary(ctx, run)
		}
		if err != nil {
			r.node.Log.Debug("check a run that changed; the leader will retry", zap.Error(err))
			return
		}
	}
}

// Rerun makes items of a run ready again. See [redo.Store.Rerun].
func (r *Runs) Rerun(ctx context.Context, req redo.RerunRequest) (redo.Rerun, error) {
	if req.Settings.Endpoint != "" {
		if err := wire.ValidateName(req.Settings.Endpoint); err != nil {
			return redo.Rerun{}, workqueue.BadSetting("%v", err)
		}
	}
	rerun, err := redo.New(r.node.Store).Rerun(ctx, req)
	r.changed(ctx, err == nil && !req.DryRun, rerun.Requests)
	return rerun, err
}

// Reset discards a step's results, and removes its requests from the stream. See [redo.Store.Reset].
func (r *Runs) Reset(ctx context.Context, req redo.ResetRequest) (redo.Reset, error) {
	reset, err := redo.New(r.node.Store).Reset(ctx, req)
	r.changed(ctx, err == nil && !req.DryRun, reset.Requests)
	return reset, err
}

// Correct replaces payloads, and removes requests with former ones from the stream. See [redo.Store.Correct].
func (r *Runs) Correct(ctx context.Context, req redo.CorrectRequest) (redo.Corrected, error) {
	corrected, err := redo.New(r.node.Store).Correct(ctx, req)
	r.changed(ctx, err == nil && !req.DryRun, corrected.Requests)
	return corrected, err
}

const loadedAtOnce = 1000

func counted(m core.Meter, next func(*start.LoadItem) error) func(*start.LoadItem) error {
	items, size := 0, 0
	return func(item *start.LoadItem) error {
		err := next(item)
		if err == nil {
			items, size = items+1, size+len(item.Payload)
		}
		if items > 0 && (err != nil || items == loadedAtOnce) {
			m.Happened(core.EventLoaded, "", items)
			m.Happened(core.EventLoadedBytes, "", size)
			items, size = 0, 0
		}
		return err
	}
}

type runSet struct {
	mu   sync.Mutex
	runs map[workqueue.RunID]time.Time // when each was added
}

func (r *runSet) add(run workqueue.RunID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == nil {
		r.runs = map[workqueue.RunID]time.Time{}
	}
	r.runs[run] = time.Now()
}

func (r *runSet) remove(run workqueue.RunID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, run)
}

func (r *runSet) all() map[workqueue.RunID]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.runs)
}

// settled is how long after a failed load one of its commits may still succeed.
const settled = time.Minute

// noteUncleared remembers a failed load that may have left data. While this session lives, the leader takes it for a
// load in progress.
func (r *Runs) noteUncleared(err error) {
	if left, ok := errors.AsType[*workqueue.CleanupPendingError](err); ok {
		r.uncleared.add(left.Run)
	}
}

func (r *Runs) keepClear(ctx context.Context, pause time.Duration) {
	for backoff.Sleep(ctx, pause) == nil {
		r.clearUncleared(ctx)
	}
}

// clearUncleared removes what failed loads of this node have left, until none of their commits can succeed.
func (r *Runs) clearUncleared(ctx context.Context) {
	for run, since := range r.uncleared.all() {
		sealed, err := r.loads.ClearLoad(ctx, run)
		switch {
		case err != nil:
			r.node.Log.Warn("clear a failed load; trying again", zap.Stringer("run", run), zap.Error(err))
		case sealed:
			r.node.Log.Warn("a load that was reported as failed had succeeded; the run is there", zap.Stringer("run", run))
			r.uncleared.remove(run)
		case time.Since(since) > settled:
			r.uncleared.remove(run)
		}
	}
}
