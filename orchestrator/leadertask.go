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

// LeaderTask is periodic work done only by the leader, in its own goroutine, so that a slow one delays neither the
// lease nor the rest. One run at a time can commit: its transactions check the lease's epoch
// ([session.Store.AsLeader]).
type LeaderTask struct {
	// Name appears in logs and views: lower case, a few words.
	Name string
	// Run does one round. Its ctx ends when the lease is lost or the node stops. again is the time to the next, unless
	// woken before ([Node.WakeLeaderTask]); 0 means the next renewal of the lease, or while the installation rests one of
	// the next. Errors and panics are logged and shown with the node.
	Run func(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error)
}

type task struct {
	LeaderTask
	turn chan struct{} // held by the goroutine that runs it
	wake chan struct{}

	mu     sync.Mutex
	state  taskState
	told   time.Time // when its last error was logged
	silent string    // the error last logged
}

// taskState is a leader task's history since its node began to lead.
type taskState struct {
	runs, failures int64
	began, ended   time.Time // of its last run; ended before began: it is running
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

// checkLeaderTasks rejects leader tasks without a unique name and a function.
func checkLeaderTasks(tasks []LeaderTask) error {
	seen := map[string]bool{}
	for _, d := range tasks {
		if d.Name == "" || d.Run == nil || seen[d.Name] {
			return fmt.Errorf("orchestrator: Config.LeaderTasks has %q; each needs a unique name and a function "+
				"(%q, %q, %q, %q, %q, %q, %q, %q, %q, %q, %q and %q are taken)", d.Name, taskSweep, taskStalled, taskClear,
				taskReconcile, TaskStreams, taskWritable, taskLost, taskPace, taskDeadlines, TaskRetention, taskCollectors,
				taskAudit)
		}
		seen[d.Name] = true
	}
	return nil
}

// serve runs a leader task until ctx ends: at its own interval, and when it is woken.
func (n *Node) serve(ctx context.Context, d *task, lease workqueue.Lease) {
	select {
	case d.turn <- struct{}{}: // its run under an earlier lease is finished
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return
	}
	d.reset()
	for {
		again := n.perform(ctx, d, lease)
		if again <= 0 {
			again = n.core.Slower(n.cfg.beatOfLease())
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

// perform runs a leader task once and recovers its panics.
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
			core.Signal(n.elections) // check the lease now
		}
		if ctx.Err() != nil {
			err = nil // it was interrupted
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

// end notes how a run ended, and reports whether to log its error.
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

// WakeLeaderTask runs a leader task now, on whichever node leads. A lost message only costs time.
func (n *Node) WakeLeaderTask(name string) {
	if !n.wakeOwnTask(name) {
		n.core.Notify(wakeTask + name)
	}
}

// wakeOwnTask wakes a leader task if this node leads, and reports whether it does.
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
