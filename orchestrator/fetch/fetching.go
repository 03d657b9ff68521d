// Package fetch is the work that a node does itself: steps with functions, hosts, sources, and endpoints called over
// core NATS. Slices stay claimed until recorded, so the end of the session releases them.
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
	// fetchInputBytes limits the bytes of items and inputs of the chunks being processed.
	fetchInputBytes = 64 << 20
	// fetchResultBytes limits the bytes of unrecorded results.
	fetchResultBytes = 64 << 20
	// fetchReaders limits the chunks read concurrently, whose size is not yet known.
	fetchReaders = 4
	// fetchChunkBytes and fetchChunkLimit are target and limit of a chunk's inputs, which need not fit a message.
	fetchChunkBytes = 4 << 20
	fetchChunkLimit = 32 << 20
	// fetchItemLimit is that of an item that makes up a chunk: its parts may have 64 MiB each.
	fetchItemLimit = 128 << 20
	// fetcherRest is how long a node leaves steps without a fetcher to other nodes.
	fetcherRest = 5 * time.Second
	// queueTimeout is how long a slice may wait for a worker of this node.
	queueTimeout = 5 * time.Second
)

// inputs reads the inputs and claims of slices. See [dispatchstore.Store].
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
		timeout time.Duration, why string) (*workqueue.Slice, error)
}

// outcomes records outcomes of slices. See [core.Core.Record].
type outcomes interface {
	Record(ctx context.Context, batch []core.Recording) (out settle.Recorded, apart bool, err error)
}

var errWaited = errors.New("the node that had claimed the slice did not get to it")

// Worker is the work that a node does itself: slices of steps whose requests are not in the work stream.
type Worker struct {
	node      *core.Core
	cfg       Config
	store     inputs
	claims    claims
	outcomes  outcomes
	after     core.OutcomeObserver
	calls     *core.Calls
	isolation *isolation
	reading   *semaphore.Weighted // chunks being read
	inputs    *semaphore.Weighted // bytes of inputs
	held      *semaphore.Weighted // bytes of results
	results   chan fetchResult
	allHanded chan struct{} // closed when only abandoned calls can still hand over results

	mu      sync.Mutex
	pools   map[string]*fetchPool // by the step's pace
	jobs    map[*fetchJob]struct{}
	looked  time.Time // when withdrawn slices were last checked
	stopped bool
	workers sync.WaitGroup
}

type fetchJob struct {
	dispatch.Assignment
	pool   *fetchPool
	cancel context.CancelCauseFunc
	begun  time.Time                             // its call; guarded by Worker.mu
	leave  func()                                // ends its turn once its outcome is recorded; nil: it has none
	large  map[largePart]dispatchstore.PartInput // of its inputs
	gone   []fetch.Slot                          // of items without one of these, or that cannot be read
	params []byte                                // of the run
}

// left ends the turn of a recorded job. A suspect begins next and may kill the node: unrecorded jobs would be blamed.
func (j *fetchJob) left() {
	if j.leave != nil {
		j.leave()
	}
}

// Config configures a worker. No field has a default.
type Config struct {
	Locals       map[string]fetch.Fetcher
	LocalWorkers int // chunks that a function processes concurrently
	Fetchers     map[workqueue.Kind]Fetchers
	Recorders    int         // concurrent commits
	RecordBatch  int         // maximum chunks of one commit
	ReplyBacklog int         // bytes of buffered replies over core NATS
	Limits       wire.Limits // of replies
}

// New returns a worker.
func New(k *core.Core, after core.OutcomeObserver, cfg Config) *Worker {
	return &Worker{
		node: k, cfg: cfg, store: dispatchstore.New(k.Store), claims: k.Settling, outcomes: k, after: after,
		calls: core.NewCalls(k, cfg.Limits, cfg.ReplyBacklog), isolation: &isolation{changed: make(chan struct{})},
		reading: semaphore.NewWeighted(fetchReaders), inputs: semaphore.NewWeighted(fetchInputBytes),
		held: semaphore.NewWeighted(fetchResultBytes), results: make(chan fetchResult, cfg.RecordBatch),
		allHanded: make(chan struct{}),
		pools:     map[string]*fetchPool{}, jobs: map[*fetchJob]struct{}{},
	}
}

// Take starts processing a slice, or queues it for a worker. When the node stops, the end of the session releases it.
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

// next returns a worker's next job; nil ends the worker.
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

// Tend releases what has waited too long for a worker, and cancels calls whose slices were withdrawn.
func (f *Worker) Tend(ctx context.Context) {
	f.nak(ctx)
	f.endTaken(ctx)
}

func (f *Worker) nak(ctx context.Context) {
	f.mu.Lock()
	var late []*fetchJob
	for _, pool := range f.pools {
		for len(pool.queue) > 0 && time.Since(pool.queue[0].Claimed) > queueTimeout {
			late, pool.queue = append(late, pool.queue[0]), pool.queue[1:]
			pool.took = queueTimeout // stop claiming ahead until chunks are quick again
		}
	}
	f.mu.Unlock()
	for _, job := range late {
		f.postpone(ctx, job, 0, errWaited)
	}
}

func (f *Worker) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	for _, pool := range f.pools {
		pool.queue = nil
	}
}

// Abandon cancels the jobs of an expired session: other nodes own the slices by now.
func (f *Worker) Abandon(session workqueue.SessionID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for job := range f.jobs {
		if job.Session == session {
			job.cancel(core.ErrSessionGone)
		}
	}
}

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

// work processes a slice, or postpones it if this node cannot process it now.
func (f *Worker) work(ctx context.Context, job *fetchJob) {
	n := f.node
	ctx, end := f.begin(ctx, job)
	defer end()
	if ctx.Err() != nil || job.Session != n.Session() {
		return // the end of the session releases it
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

func (f *Worker) postpone(ctx context.Context, job *fetchJob, delay time.Duration, why error) {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	if err := f.claims.Postpone(ctx, job.Session, job.ID, delay, why); err != nil {
		// It stays claimed until the session or its claim expires.
		f.node.Log.Warn("postpone", zap.Stringer("slice", job.ID), zap.Error(err))
	}
}

// try processes a slice. After an error it has not begun.
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
	defer f.inputs.Release(min(size, fetchInputBytes))
	if size > fetchItemLimit {
		call = tooLarge(job.Work.Inputs, size)
	}
	if len(job.gone) > 0 {
		call = forTheRest(call, job.gone)
	}
	if job.leave, err = f.turn(ctx, job); err != nil {
		return err
	}
	f.mu.Lock()
	job.begun = time.Now() // from now on its slice stays the same
	f.mu.Unlock()
	f.run(ctx, job, call, req)
	return nil
}

// Start starts recording the results. end stops it: jobs in progress may finish until ctx ends.
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

// Fetchers makes fetchers for steps of one kind. It is called for every chunk, concurrently, so it caches.
type Fetchers interface {
	// Fetcher returns the fetcher for a step's settings, as JSON. After an error other nodes get the chunk.
	Fetcher(config []byte) (fetch.Fetcher, error)
}

// resting is implemented by Fetchers whose services may demand a pause.
type resting interface {
	// RestsUntil returns until when nothing may be claimed of a pace; zero: it may be now.
	RestsUntil(paceKey string) time.Time
}

type fetchCall func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error)

type noFetcherError struct {
	work workqueue.StepWork
	why  error
}

func (e *noFetcherError) Error() string {
	return fmt.Sprintf("this node cannot do the work of step %s (%s): %v", e.work.Name, e.work.Kind, e.why)
}

func (e *noFetcherError) Unwrap() error { return e.why }

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

// fetcherOf returns nil for a step that calls an endpoint.
func (f *Worker) fetcherOf(job *fetchJob) (fetch.Fetcher, error) {
	switch kind := job.Work.Kind; kind {
	case workqueue.KindDirect:
		return nil, nil
	case workqueue.KindLocal:
		name := strings.TrimPrefix(job.Endpoint, workqueue.TargetKey(kind, ""))
		if local := f.cfg.Locals[name]; local != nil {
			return local, nil
		}
		return nil, fmt.Errorf("it has no function %s; it has %s", name,
			strings.Join(slices.Sorted(maps.Keys(f.cfg.Locals)), ", "))
	default:
		fetchers := f.cfg.Fetchers[kind]
		if fetchers == nil {
			return nil, fmt.Errorf("it has no fetchers of kind %s", kind)
		}
		return fetchers.Fetcher(job.Work.Config)
	}
}
