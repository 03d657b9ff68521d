package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// DutyName is what the leader's duty is called.
const DutyName = "schedules"

// How the duty goes about it.
const (
	DefaultStarts = 4 // runs whose items are loaded at once, but for those that take long
	slowStarts    = 4 // so many times as many with those

	slowLoad  = time.Minute      // from then on a load takes long, and its place is another's
	tellPause = 10 * time.Second // between two times at which fires are noted to wait for their turn

	startBackoff    = 5 * time.Second // after the first attempt that failed; doubled later
	maxStartBackoff = 5 * time.Minute
	loadingPause    = 2 * time.Second // while what a dead leader had loaded of the run is cleared away

	maxPause  = 5 * time.Second // between two looks, for changes that nobody told of
	idlePause = time.Second     // while something waits for what only time can tell
	goOn      = 10 * time.Millisecond

	page       = 100 // due schedules, and late runs, in one look
	maxWaiting = 1000
	maxQueued  = 100 // of one schedule
)

// Runs is what the duty does with runs that are there. A node can.
type Runs interface {
	Pause(ctx context.Context, c control.Control) (control.Controlled, error)
	Cancel(ctx context.Context, c control.Control) (control.Cancelled, error)
	WakeDuty(name string)
}

// Config sets a Duty up. A zero field means its default.
type Config struct {
	Log    *zap.Logger // nil: none
	Starts int         // runs whose items are loaded at once; those that take long make room for others
}

// Duty starts the runs of schedules while its node leads.
type Duty struct {
	store *database.DB
	runs  Runs
	start Starter
	cfg   Config
	log   *zap.Logger

	mu      sync.Mutex
	loading map[schedulestore.FireKey]loading // by goroutines of this duty
	told    time.Time                         // when fires were last noted to wait for their turn
	loads   sync.WaitGroup
}

// loading is a run whose items are being loaded.
type loading struct {
	lease workqueue.Lease
	since time.Time // the database's time
}

// New returns the duty of a node.
func New(store *database.DB, runs Runs, start Starter, cfg Config) (*Duty, error) {
	if store == nil || runs == nil || start == nil {
		return nil, errors.New("schedules: a store, runs and a starter are needed")
	}
	if cfg.Starts < 0 {
		return nil, fmt.Errorf("schedules: Config.Starts is %d; it must be positive, or 0 for %d", cfg.Starts, DefaultStarts)
	}
	if cfg.Starts == 0 {
		cfg.Starts = DefaultStarts
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	return &Duty{store: store, runs: runs, start: start, cfg: cfg, log: cfg.Log,
		loading: map[schedulestore.FireKey]loading{}}, nil
}

// Duty returns it as the node takes it.
func (d *Duty) Duty() orchestrator.Duty { return orchestrator.Duty{Name: DutyName, Run: d.Run} }

// Wait waits for loads that were under way when the lease was lost. Their context has ended by then.
func (d *Duty) Wait() { d.loads.Wait() }

// Run takes due times, begins to start runs, and looks after those that are late. It does not wait for the items of
// runs: they are loaded beside it, until ctx ends. What it cannot do for one schedule keeps no other waiting.
func (d *Duty) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	taken, err := d.take(ctx, lease)
	began, err2 := d.begin(ctx, lease)
	late, err3 := d.late(ctx, lease)
	err = errors.Join(err, err2, err3)
	if errors.Is(err, workqueue.ErrNotLeader) || ctx.Err() != nil {
		return 0, err
	}
	wait, ok, err4 := schedulestore.New(d.store).NextScheduleTime(ctx)
	err = errors.Join(err, err4)
	switch {
	case err != nil:
		return idlePause, err
	case taken || began || late:
		return goOn, nil
	case !ok:
		return maxPause, nil
	case wait == 0: // a run in the queue, or no hands free for another
		return idlePause, nil
	}
	return min(wait, maxPause), nil
}

// read makes a schedule of what is on record.
func read(name string, text json.RawMessage) (*schedule.Spec, error) {
	spec := &schedule.Spec{}
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("schedule %s cannot be read by this version of tranche; apply it again: %w", name, err)
	}
	return spec, nil
}
