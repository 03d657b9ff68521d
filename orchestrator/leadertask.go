package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// LeaderTask is something that only the node does that leads, again and again. Each leader task has a goroutine of its
// own, so that a slow one keeps neither the lease nor the other leader tasks waiting, and runs at most once at a time,
// on all nodes together as far as what it commits goes: its transactions check the lease's epoch
// ([session.Store.AsLeader]).
type LeaderTask struct {
	// Name stands in logs and views: lower case, a few words.
	Name string
	// Run does what there is to do. Its ctx ends when the lease is lost or the node stops. again is when it wants to run
	// next, unless it is woken before (see [Node.WakeLeaderTask]); 0 means at the next beat of the lease. What it returns
	// as an error is logged and shown beside the node; that it panics is, too.
	Run func(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error)
}

// task is a LeaderTask of this node, with what has become of it.
type task struct {
	LeaderTask
	turn chan struct{} // has room for who runs it
	wake chan struct{}

	mu     sync.Mutex
	state  taskState
	told   time.Time // when its last error was logged
	silent string    // which that was
}

// taskState is what became of a leader task since its node began to lead.
type taskState struct {
	runs, failures int64
	began, ended   time.Time // of its last run; ended is before began while it runs
	took           time.Duration
	failing        bool // its last run failed
	lastError      string
	lastFailed     time.Time
	succeeded      time.Time
}

func newLeaderTasks(all []LeaderTask) []*task {
	tasks := make([]*task, len(all))
	for i, d := range all {
		tasks[i] = &task{LeaderTask: d, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	}
	return tasks
}

// checkLeaderTasks refuses leader tasks that no one could tell from one another.
func checkLeaderTasks(tasks []LeaderTask) error {
	seen := map[string]bool{}
	for _, d := range tasks {
		if d.Name == "" || d.Run == nil || seen[d.Name] {
			return fmt.Errorf("orchestrator: Config.LeaderTasks has %q; each has a name of its own and a function "+
				"(%q, %q, %q, %q, %q, %q, %q, %q, %q, %q and %q are taken)", d.Name, taskSweep, taskStalled, taskClear, taskReconcile,
				TaskStreams, taskWritable, taskLost, taskPace, taskDeadlines, TaskRetention, taskCollectors)
		}
		seen[d.Name] = true
	}
	return nil
}

// serve runs a leader task until ctx ends: as often as it wants to, and when it is woken.
func (n *Node) serve(ctx context.Context, d *task, lease workqueue.Lease) {
	select {
	case d.turn <- struct{}{}: // what it did under an earlier lease has come to its end
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return
	}
	d.reset()
	for {
		again := n.perform(ctx, d, lease)
		if again <= 0 {
			again = n.cfg.beatOfLease()
		}
		next := time.NewTimer(again)
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		case <-d.wake:
			next.Stop()
		}
	}
}

// perform runs a leader task once, and survives it.
func (n *Node) perform(ctx context.Context, d *task, lease workqueue.Lease) (again time.Duration) {
	if ctx.Err() != nil {
		return 0
	}
	d.begin()
	err := error(nil)
	defer func() {
		if p := recover(); p != nil {
			n.core.Log.Error("a task panicked", zap.String("task", d.Name), zap.Any("panic", p),
				zap.ByteString("stack", debug.Stack()))
			again, err = 0, fmt.Errorf("panic: %v", p)
		}
		if errors.Is(err, workqueue.ErrNotLeader) {
			core.Signal(n.elections) // the lease is to be looked at
		}
		if ctx.Err() != nil {
			err = nil // it was cut off
		}
		if d.end(err) {
			n.core.Log.Warn("a task failed; trying again", zap.String("task", d.Name), zap.Error(err))
		}
	}()
	again, err = d.Run(database.ForLeader(ctx), lease)
	return again
}

func (d *task) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = taskState{}
}

func (d *task) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.began = time.Now()
	d.state.runs++
}

// end notes how a run ended, and reports whether its error is to be logged.
func (d *task) end(err error) (tell bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.state
	s.ended = time.Now()
	s.took, s.failing = s.ended.Sub(s.began), err != nil
	if err == nil {
		d.silent, s.succeeded = "", s.ended
		return false
	}
	s.failures++
	s.lastFailed, s.lastError = s.ended, core.Readable(err)
	if errors.Is(err, workqueue.ErrNotLeader) || d.silent == s.lastError && time.Since(d.told) < core.SameError {
		return false
	}
	d.told, d.silent = s.ended, s.lastError
	return true
}

// WakeLeaderTask has the leader, be it this one or another, run a leader task now. A lost message costs no more than
// what the leader task would have waited.
func (n *Node) WakeLeaderTask(name string) {
	if !n.wakeOwnTask(name) {
		n.core.Notify(wakeTask + name)
	}
}

// wakeOwnTask wakes a leader task when this node leads, and reports whether it does.
func (n *Node) wakeOwnTask(name string) bool {
	if n.lease.Load() == nil {
		return false
	}
	for _, d := range n.tasks {
		if d.Name == name {
			core.Signal(d.wake)
		}
	}
	return true
}

func (d *task) pulse() inspect.TaskPulse {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state
	p := inspect.TaskPulse{Name: d.Name, Runs: s.runs, Failures: s.failures, Ended: ago(s.ended), Took: s.took,
		Failing: s.failing, LastError: s.lastError, Failed: ago(s.lastFailed),
		Succeeded: ago(s.succeeded)}
	if s.began.After(s.ended) {
		p.Running = time.Since(s.began)
	}
	return p
}

func ago(at time.Time) time.Duration {
	if at.IsZero() {
		return -1
	}
	return time.Since(at)
}
