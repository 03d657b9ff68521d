// Package fetch is the work that a node does itself: steps of functions, hosts, sources, and endpoints asked over core
// NATS. Slices stay claimed until their outcome is recorded, so that they come back when the node's session ends.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/orchestrator/dispatch"
	"github.com/tranchehq/tranche/workqueue"
	dispatchstore "github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// fetchInputBytes bounds the items and parts of the chunks that a node works on itself.
	fetchInputBytes = 64 << 20
	// fetchResultBytes bounds what came of them and is not recorded yet.
	fetchResultBytes = 64 << 20
	// fetchReaders is how many chunks are read at once, before it is known how large they are.
	fetchReaders = 4
	// fetchChunkBytes is the wanted size of what a chunk must be worked with, fetchChunkLimit the most that a step may
	// ask for: no message has to hold it.
	fetchChunkBytes = 4 << 20
	fetchChunkLimit = 32 << 20
	// fetcherRest is how long a node leaves steps alone for which it has no fetcher: another may have one.
	fetcherRest = 5 * time.Second
	// queueTimeout is how long a slice may wait for a worker of this node.
	queueTimeout = 5 * time.Second
)

// inputs is what slices are worked with, and whose they are. See [dispatchstore.Store].
type inputs interface {
	EachInput(ctx context.Context, want dispatchstore.InputRequest, f func(dispatchstore.Input) bool) error
	StillClaimed(ctx context.Context, session workqueue.SessionID, of []workqueue.SliceID) ([]workqueue.SliceID, error)
	TriedAlone(ctx context.Context, id workqueue.SliceID) (bool, error)
	BeginAlone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID) (bool, error)
}

// claims gives slices back or cuts them. See [settle.Store].
type claims interface {
	Postpone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, in time.Duration, why error) error
	Split(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, masks []bitfield.Set,
		timeout time.Duration) (*workqueue.Slice, error)
}

// outcomes records what came of slices. See [core.Core.Record].
type outcomes interface {
	Record(ctx context.Context, batch []core.Recording) (out settle.Recorded, apart bool, err error)
}

var errWaited = errors.New("the node that had claimed the slice did not get to it")

// Worker is what a node does itself: the slices of steps whose work no service takes from the stream. Its slices stay
// claimed until their outcome is recorded, so that they come back when the node's session ends.
type Worker struct {
	node      *core.Core
	cfg       Config
	store     inputs
	claims    claims
	outcomes  outcomes
	after     core.OutcomeObserver
	calls     *core.Calls
	isolation *isolation
	reading   *semaphore.Weighted // chunks that are being read
	inputs    *semaphore.Weighted // bytes
	held      *semaphore.Weighted // bytes
	results   chan fetchResult
	allHanded chan struct{} // closed once nothing more comes but from calls that were given up

	mu      sync.Mutex
	pools   map[string]*fetchPool // by what paces the step
	jobs    map[*fetchJob]struct{}
	looked  time.Time // for slices that were taken back
	stopped bool
	workers sync.WaitGroup
}

// fetchJob is a slice that a node works on.
type fetchJob struct {
	dispatch.Assignment
	pool   *fetchPool
	cancel context.CancelCauseFunc
	begun  time.Time // its call; guarded by the mutex of its fetching
	leave  func()    // lets others begin, once what came of it is recorded; nil: it had no turn
}

// left ends the turn of a job. Not before it is recorded: a suspect that begins meanwhile may end the node, and then
// what was not recorded is taken for what did.
func (j *fetchJob) left() {
	if j.leave != nil {
		j.leave()
	}
}

// Config sets fetching up. Nothing in it has a default.
type Config struct {
	Locals       map[string]fetch.Fetcher
	LocalWorkers int // chunks that a function works on at once
	Fetchers     map[workqueue.Kind]Fetchers
	Recorders    int         // commits in progress at once
	RecordBatch  int         // chunks of one commit at most
	ReplyBacklog int         // bytes of replies over core NATS that are held while they wait to be taken
	Limits       wire.Limits // of the replies read
}

// New returns what works on slices in this node.
func New(k *core.Core, after core.OutcomeObserver, cfg Config) *Worker {
	return &Worker{
		node: k, cfg: cfg, store: dispatchstore.New(k.Store), claims: k.Settling, outcomes: k, after: after, calls: core.NewCalls(k, cfg.Limits, cfg.ReplyBacklog), isolation: newIsolation(),
		reading: semaphore.NewWeighted(fetchReaders), inputs: semaphore.NewWeighted(fetchInputBytes),
		held: semaphore.NewWeighted(fetchResultBytes), results: make(chan fetchResult, cfg.RecordBatch),
		allHanded: make(chan struct{}),
		pools:     map[string]*fetchPool{}, jobs: map[*fetchJob]struct{}{},
	}
}

// Take begins to work on a slice, or lets it wait for a worker. What waits when the node stops goes back with the
// session.
func (f *Worker) Take(ctx context.Context, a dispatch.Assignment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return
	}
	pool := f.pool(a.Work.Kind, a.Endpoint)
	pool.size = f.workersFor(a.Work)
	job := &fetchJob{Assignment: a, pool: pool}
	if pool.busy >= pool.size {
		pool.queue = append(pool.queue, job)
		return
	}
	pool.busy++
	f.workers.Go(func() {
		for next := job; next != nil; next = f.next(pool) {
			f.work(ctx, next)
		}
	})
}

// next returns what a worker does next, or nil when it has nothing to do and is to end.
func (f *Worker) next(pool *fetchPool) *fetchJob {
	f.mu.Lock()
	defer f.mu.Unlock()
	var job *fetchJob
	if len(pool.queue) == 0 || pool.busy > pool.size {
		pool.busy--
	} else {
		job, pool.queue = pool.queue[0], pool.queue[1:]
	}
	if pool.room() > 0 {
		f.node.Wake()
	}
	return job
}

// Tend gives back what has waited too long for a worker, and ends what was taken back.
func (f *Worker) Tend(ctx context.Context) {
	f.nak(ctx)
	f.endTaken(ctx)
}

// nak gives back what has waited for a worker longer than was to be expected, so that others may take it.
func (f *Worker) nak(ctx context.Context) {
	f.mu.Lock()
	var late []*fetchJob
	for _, pool := range f.pools {
		for len(pool.queue) > 0 && time.Since(pool.queue[0].Claimed) > queueTimeout {
			late, pool.queue = append(late, pool.queue[0]), pool.queue[1:]
			pool.took = queueTimeout // no more are claimed ahead until chunks are quick again
		}
	}
	f.mu.Unlock()
	for _, job := range late {
		f.postpone(ctx, job, 0, errWaited)
	}
}

// stop lets nothing that waits begin.
func (f *Worker) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	for _, pool := range f.pools {
		pool.queue = nil
	}
}

// Abandon ends what is in progress for a session that is over: the slices are someone else's by now.
func (f *Worker) Abandon(session workqueue.SessionID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for job := range f.jobs {
		if job.Session == session {
			job.cancel(core.ErrSessionGone)
		}
	}
}

// begin registers a job and returns its context.
func (f *Worker) begin(ctx context.Context, job *fetchJob) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	job.cancel = cancel
	f.jobs[job] = struct{}{}
	return ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.jobs, job)
		cancel(nil)
	}
}

// work brings a slice to its end, or gives it back for a while when it cannot be worked on here and now.
func (f *Worker) work(ctx context.Context, job *fetchJob) {
	n := f.node
	ctx, end := f.begin(ctx, job)
	defer end()
	if ctx.Err() != nil || job.Session != n.Session() {
		return // the session's end hands it back
	}
	err := f.try(ctx, job)
	if err == nil || ctx.Err() != nil || errors.Is(err, errTaken) {
		return
	}
	if errors.Is(err, errAlone) {
		f.postpone(ctx, job, alonePause, err)
		return
	}
	n.Log.Warn("cannot work on a slice; it is taken up again in a while", zap.Stringer("run", job.Run),
		zap.Stringer("slice", job.ID), zap.String("step", job.Work.Name), zap.Error(err))
	n.Stats.Postponed.Add(1)
	delay := 2 * dispatch.Postponement
	if _, missing := errors.AsType[*noFetcherError](err); missing {
		f.rest(job.pool)
		delay = fetcherRest
	}
	f.postpone(ctx, job, core.Jitter(delay), err)
}

// postpone gives a slice back for a while.
func (f *Worker) postpone(ctx context.Context, job *fetchJob, delay time.Duration, why error) {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	if err := f.claims.Postpone(ctx, job.Session, job.ID, delay, why); err != nil {
		// It stays claimed until the session or its time ends.
		f.node.Log.Warn("postpone", zap.Stringer("slice", job.ID), zap.Error(err))
	}
}

// try works on a slice. An error means that nothing was begun.
func (f *Worker) try(ctx context.Context, job *fetchJob) error {
	kills, err := f.killsNodes(ctx, job)
	if err != nil {
		return err
	}
	if kills {
		f.giveUpOn(ctx, job)
		return nil
	}
	call, err := f.callOf(job)
	if err != nil {
		return err
	}
	req, size, err := f.read(ctx, job)
	if err != nil {
		return err
	}
	defer f.inputs.Release(size)
	if job.leave, err = f.turn(ctx, job); err != nil {
		return err
	}
	f.called(job)
	f.run(ctx, job, call, req)
	return nil
}

// Start records what comes of fetched slices. The function that it returns ends it: what is in progress may come to
// its end until ctx does.
func (f *Worker) Start(ctx context.Context) (end func()) {
	var recorders sync.WaitGroup
	for range f.cfg.Recorders {
		recorders.Go(func() { f.record(ctx) })
	}
	return func() {
		f.stop()
		f.workers.Wait()
		f.calls.Close()
		close(f.allHanded)
		recorders.Wait()
	}
}

// Fetchers makes fetchers for steps of one kind. It is asked for each chunk, from several goroutines, and so keeps what
// is costly to make.
type Fetchers interface {
	// Fetcher returns what fetches for a step with the given settings, which are JSON. An error means that this node
	// cannot: the chunk is left to others for a while.
	Fetcher(config []byte) (fetch.Fetcher, error)
}

// resting is implemented by Fetchers that are told by whom they ask to stay away for a while.
type resting interface {
	// RestsUntil returns until when nothing is to be claimed of a pace; the zero time: it may be now.
	RestsUntil(paceKey string) time.Time
}

// fetchCall works on a chunk.
type fetchCall func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error)

// noFetcherError says that this node cannot work on a step.
type noFetcherError struct {
	work workqueue.StepWork
	why  error
}

func (e *noFetcherError) Error() string {
	return fmt.Sprintf("this node cannot do the work of step %s (%s): %v", e.work.Name, e.work.Kind, e.why)
}

func (e *noFetcherError) Unwrap() error { return e.why }

// offers reports whether this node works on steps of a kind at all.
func (f *Worker) offers(kind workqueue.Kind) bool {
	switch kind {
	case workqueue.KindLocal:
		return len(f.cfg.Locals) > 0
	case workqueue.KindDirect:
		return true
	default:
		return f.cfg.Fetchers[kind] != nil
	}
}

// callOf returns what works on the chunks of a step.
func (f *Worker) callOf(job *fetchJob) (fetchCall, error) {
	fetcher, err := f.fetcherOf(job)
	switch {
	case err != nil:
		return nil, &noFetcherError{job.Work, err}
	case fetcher == nil:
		return f.asks(job.Endpoint), nil
	}
	return func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error) {
		return fetch.Guard(fetch.ReportPanics(ctx, c.panicked), fetcher, req.WithSink(c))
	}, nil
}

// fetcherOf returns nil for a step that asks an endpoint.
func (f *Worker) fetcherOf(job *fetchJob) (fetch.Fetcher, error) {
	switch kind := job.Work.Kind; kind {
	case workqueue.KindDirect:
		return nil, nil
	case workqueue.KindLocal:
		name := strings.TrimPrefix(job.Endpoint, workqueue.TargetKey(kind, ""))
		if local := f.cfg.Locals[name]; local != nil {
			return local, nil
		}
		return nil, fmt.Errorf("it has no function %s; it has %s", name, strings.Join(f.names(), ", "))
	default:
		fetchers := f.cfg.Fetchers[kind]
		if fetchers == nil {
			return nil, fmt.Errorf("it has no fetchers of kind %s", kind)
		}
		return fetchers.Fetcher(job.Work.Config)
	}
}

// names of the functions for steps of kind local, in order.
func (f *Worker) names() []string { return slices.Sorted(maps.Keys(f.cfg.Locals)) }
