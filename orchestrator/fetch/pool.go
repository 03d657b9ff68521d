package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	dispatchstore "github.com/tranchehq/tranche/workqueue/dispatch"
)

const (
	requestWorkers = 32
	fetchWorkers   = 4
	// quickChunk is the longest duration of chunks that are claimed ahead.
	quickChunk = time.Second
	maxAhead   = 4
	// maxHung hung calls of a function stop further claims.
	maxHung = 64
)

// fetchPool limits the concurrent work of one pace, such as a function or a host. It is guarded by Worker.mu.
type fetchPool struct {
	key     string
	size    int           // number of workers
	busy    int           // number of busy workers
	queue   []*fetchJob   // claimed ahead
	hung    int           // abandoned calls that have not returned
	took    time.Duration // mean duration of recent chunks; 0: unknown
	resting time.Time     // until when nothing is claimed
}

// pool returns the pool of a pace, with mu held.
func (f *Worker) pool(kind workqueue.Kind, key string) *fetchPool {
	pool := f.pools[key]
	if pool == nil {
		pool = &fetchPool{key: key, size: f.initialWorkers(kind)}
		f.pools[key] = pool
	}
	return pool
}

// Room returns how many slices of a pace may be claimed now.
func (f *Worker) Room(kind workqueue.Kind, key string) int {
	if rests, ok := f.cfg.Fetchers[kind].(resting); ok && time.Now().Before(rests.RestsUntil(key)) {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	pool := f.pools[key]
	switch {
	case f.stopped || !f.offers(kind):
		return 0
	case pool == nil:
		return f.initialWorkers(kind)
	default:
		return pool.room()
	}
}

// room returns how many more slices the pool may have, with mu held. Quick chunks are claimed ahead, several
// together, so that workers need not wait for a claim.
func (p *fetchPool) room() int {
	if p.hung >= maxHung || time.Now().Before(p.resting) {
		return 0
	}
	ahead := 0
	if p.took > 0 && p.took < quickChunk {
		ahead = p.size * int(max(1, min(maxAhead, quickChunk/4/p.took)))
	}
	room := p.size + ahead - p.busy - len(p.queue)
	if len(p.queue) > 0 && 2*room < ahead {
		return 0
	}
	return max(0, room)
}

// Narrow limits a claim to the free capacity, in chunks that need not fit a message.
func (f *Worker) Narrow(req *dispatchstore.ClaimRequest, step *dispatchstore.Runnable) {
	req.MaxSlices = min(req.MaxSlices, f.Room(step.Kind, step.Endpoint))
	if step.Kind != workqueue.KindDirect {
		req.MaxBytes, req.LimitBytes = fetchChunkBytes, fetchChunkLimit
	}
}

// Full adds the paces without free capacity to a list.
func (f *Worker) Full(keys []string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, pool := range f.pools {
		if pool.room() == 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

func (f *Worker) initialWorkers(kind workqueue.Kind) int {
	switch kind {
	case workqueue.KindLocal:
		return f.cfg.LocalWorkers
	case workqueue.KindDirect:
		return requestWorkers
	default:
		return 1
	}
}

func (f *Worker) workersFor(work workqueue.StepWork) int {
	if work.Kind == workqueue.KindLocal || work.Kind == workqueue.KindDirect {
		return f.initialWorkers(work.Kind)
	}
	var settings struct {
		Concurrency int  `json:"concurrency"`
		WholeChunk  bool `json:"whole_chunk"`
	}
	switch {
	case json.Unmarshal(work.Config, &settings) != nil || settings.Concurrency < 1:
		return fetchWorkers
	case work.Kind == workqueue.KindHTTP && !settings.WholeChunk:
		return min(2, settings.Concurrency) // each has several requests in flight; the second fills the gaps of the first
	default:
		return settings.Concurrency
	}
}

func (f *Worker) ended(pool *fetchPool, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pool.took = cmp.Or(pool.took, took)
	pool.took += (took - pool.took) / 8
}

func (f *Worker) rest(pool *fetchPool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pool.resting = time.Now().Add(fetcherRest)
}

// hang adds to the hung calls of a pace, and returns their number.
func (f *Worker) hang(pool *fetchPool, calls int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	pool.hung += calls
	f.node.Stats.Hung.Add(int64(calls))
	return pool.hung
}

// AtWork returns the number of slices in progress.
func (f *Worker) AtWork() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.jobs)
}

// hangTimeout is how long a call may take to return after its context ended. Then it is abandoned.
const hangTimeout = time.Second

type callEnd struct {
	slots []fetch.Slot
	err   error
}

// run calls a fetcher for a chunk, and hands over the outcome.
func (f *Worker) run(ctx context.Context, job *fetchJob, call fetchCall, req *fetch.Request) {
	c := newCollector(f, job)
	ctx = f.traceFetching(ctx, c)
	timed, stop := c.limit(ctx, job.Work.Timeout)
	defer stop()
	f.node.Faults.Hit(fault.FetchBefore)
	f.node.Stats.Fetches.Add(1)
	f.node.Sent(job.Endpoint, job.Attempt)
	begun := time.Now()
	back := make(chan callEnd, 1)
	go func() {
		slots, err := call(timed, req, c)
		back <- callEnd{slots, err}
	}()
	end, came := waitFor(timed, back)
	took := time.Since(begun)
	f.ended(job.pool, took)
	if ctx.Err() != nil {
		c.traced(context.Cause(ctx))
		if !came {
			f.leak(c, back)
		}
		job.left()
		return // this node no longer owns the slice, or releases it
	}
	f.node.Faults.Hit(fault.FetchDone)
	var failure *workqueue.SlotError
	switch {
	case !came:
		f.leak(c, back)
		failure = c.giveUp()
	case timed.Err() != nil && (end.err == nil || core.IsEnd(end.err)):
		failure = c.late()
	case end.err != nil:
		failure = core.SlotError(fetch.ErrorOf(end.err, true))
	}
	for i := range end.slots {
		c.Take(end.slots[i])
	}
	c.finish(ctx, failure, took)
}

// waitFor waits for a call, at most until hangTimeout after its context ends.
func waitFor(ctx context.Context, back <-chan callEnd) (end callEnd, came bool) {
	select {
	case end = <-back:
		return end, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(hangTimeout)
	defer timer.Stop()
	select {
	case end = <-back:
		return end, true
	case <-timer.C:
		return callEnd{}, false
	}
}

// leak counts an abandoned call until it returns. Its results are dropped.
func (f *Worker) leak(c *collector, back <-chan callEnd) {
	c.mu.Lock()
	c.done = true
	c.mu.Unlock()
	log := f.node.Log.With(zap.String("step", c.job.Work.Name), zap.String("of", c.job.Endpoint),
		zap.Stringer("run", c.job.Run), zap.Stringer("slice", c.job.ID))
	n := f.hang(c.job.pool, 1)
	log.Error("a call does not return although its context ended; it is abandoned and continues in the background",
		zap.Int("hung", n), zap.Int("at_most", maxHung), zap.Int("ordinal", c.at()))
	go func() {
		<-back
		f.hang(c.job.pool, -1)
		log.Warn("an abandoned call returned; its result is dropped")
		f.node.Wake()
	}()
}
