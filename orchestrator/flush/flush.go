// Package flush does a node's work for collectors: it claims keys that are due, asks their endpoint with one list
// request for each, and records what came of it.
package flush

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// flushRest is the longest that a node leaves a collector alone that may make no call yet.
const flushRest = time.Second

// WakeFlush goes with wakeSubject when keys are due that this node has no room for.
const WakeFlush = "flush"

// Flusher is what a node does for collectors: it looks for keys that are due, asks their endpoint with one list
// request for each, and records what came of it. A key stays its flush's until that is recorded, so that it comes back
// when the node's session ends.
type Flusher struct {
	node  *core.Core
	cfg   Config
	keys  keyStore
	watch followUps
	calls *core.Calls
	sent  *sentFlushes
	wakes chan struct{}
	ended chan collectorstore.FlushEnd // what waits to be recorded

	mu      sync.Mutex
	busy    map[int32]int // keys that are being flushed, by their collectors
	slow    map[int32]int // collectors whose operations were not read in time, with how many keys are tried at once
	flights map[*flight]struct{}
	resting map[int32]time.Time // collectors, until when a look at them is of no use
	alarm   time.Time           // when the next timer goes off; zero: there is none
	working sync.WaitGroup
}

// flight is a claim whose keys are being flushed.
type flight struct {
	collector int32
	claimed   collectorstore.ClaimedFlushes
	session   workqueue.SessionID
	hold      *hold
	cancel    context.CancelCauseFunc
}

// Config sets flushing up. Nothing in it has a default.
type Config struct {
	Poll         time.Duration // between two looks for keys, at the least
	SessionTTL   time.Duration // life of a session beyond its last heartbeat
	Recorders    int           // commits in progress at once
	ReplyBacklog int           // bytes of replies that are held while they wait to be taken
	Limits       wire.Limits   // of the replies read
}

// keyStore has the keys of collectors. See [collectorstore.Store].
type keyStore interface {
	DueCollectors(ctx context.Context) ([]collectorstore.DueCollector, error)
	ClaimFlushes(ctx context.Context, req collectorstore.FlushRequest) (collectorstore.ClaimedFlushes, error)
	ReadFlushes(ctx context.Context, claimed *collectorstore.ClaimedFlushes, bytes int64) (
		[][]collectorstore.FlushOp, error)
	RecordFlushes(ctx context.Context, ends []collectorstore.FlushEnd) ([]collectorstore.FlushRecorded, error)
	ProlongFlushes(ctx context.Context, flushes []uuid.UUID, limits []time.Duration) ([]uuid.UUID, error)
}

// followUps is told what is to be looked at after a commit.
type followUps interface{ Add(settle.FollowUp) }

// New returns what flushes collectors.
func New(k *core.Core, watch followUps, cfg Config) *Flusher {
	f := newFlusher(k, collectorstore.New(k.Store), watch, cfg)
	f.calls = core.NewCalls(k, cfg.Limits, cfg.ReplyBacklog)
	f.calls.Renew = f.sent.renew
	return f
}

func newFlusher(k *core.Core, keys keyStore, watch followUps, cfg Config) *Flusher {
	return &Flusher{node: k, cfg: cfg, keys: keys, watch: watch, sent: newSentFlushes(keys, k.Log),
		wakes: make(chan struct{}, 1), ended: make(chan collectorstore.FlushEnd), busy: map[int32]int{},
		slow: map[int32]int{}, flights: map[*flight]struct{}{}, resting: map[int32]time.Time{}}
}

// Run flushes until ctx ends, and brings what is in progress to its end.
func (f *Flusher) Run(ctx, draining context.Context) {
	var recorders sync.WaitGroup
	for range f.cfg.Recorders {
		recorders.Go(func() { f.record(draining) })
	}
	f.look(ctx, draining)
	f.working.Wait()
	close(f.ended)
	recorders.Wait()
	f.calls.Close()
}

// look takes keys until ctx ends: when woken, when the next key is due, and every Poll.
func (f *Flusher) look(ctx, draining context.Context) {
	n := f.node
	for ctx.Err() == nil {
		wait := core.Jitter(f.cfg.Poll)
		if n.NC.IsConnected() { // what cannot be asked for is not to be claimed
			next, err := f.round(ctx, draining)
			if err != nil && ctx.Err() == nil && !errors.Is(err, workqueue.ErrBusy) {
				n.Log.Warn("flush collectors", zap.Error(err))
			}
			wait = max(time.Millisecond, min(wait, next))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-f.wakes:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// round claims for every collector that has keys due, each its share of the room that there is for it: the longest due
// does not take what is kept for the others. It returns in how long it is worth looking again.
func (f *Flusher) round(ctx, draining context.Context) (wait time.Duration, err error) {
	due, err := f.due(ctx)
	if err != nil {
		return flushRest, err
	}
	wait = flushRest
	var failed error
	for i, c := range due {
		in := max(c.In, f.rest(c.ID))
		if in > 0 {
			wait = min(wait, in)
			continue
		}
		room := f.room(c.ID)
		if room <= 0 {
			continue // a flush that ends looks again
		}
		again, err := f.claim(ctx, draining, c.ID, max(1, room/(len(due)-i)))
		wait, failed = min(wait, again), errors.Join(failed, err)
	}
	return wait, failed
}

func (f *Flusher) due(ctx context.Context) ([]collectorstore.DueCollector, error) {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	return f.keys.DueCollectors(ctx)
}

// claim takes keys of a collector and begins to flush them.
func (f *Flusher) claim(ctx, draining context.Context, collector int32, most int) (again time.Duration, err error) {
	n := f.node
	session, begun := n.Session(), time.Now()
	claimed, err := f.keys.ClaimFlushes(ctx, collectorstore.FlushRequest{Session: session,
		Collector: collector, Max: most})
	if err != nil {
		return flushRest, err
	}
	again = flushRest
	if claimed.Wait > 0 {
		again = min(flushRest, claimed.Wait)
		f.leave(collector, again)
	}
	if len(claimed.Flushes) == 0 {
		return again, nil
	}
	if len(claimed.Flushes) == most {
		core.Signal(f.wakes) // there may be more
	}
	flying, cancel := context.WithCancelCause(draining)
	w := &flight{collector: collector, claimed: claimed, session: session, hold: newHold(begun, f.cfg.SessionTTL),
		cancel: cancel}
	f.mu.Lock()
	f.busy[collector] += len(claimed.Flushes)
	f.flights[w] = struct{}{}
	f.mu.Unlock()
	f.working.Go(func() {
		defer f.land(w)
		f.fly(flying, w)
	})
	return again, nil
}

// fly flushes the keys of a claim.
func (f *Flusher) fly(ctx context.Context, w *flight) {
	n := f.node
	ops, err := f.read(ctx, w)
	if err != nil {
		if ctx.Err() == nil {
			n.Log.Warn("read operations; their keys are given back", zap.String("collector", w.claimed.Name), zap.Error(err))
		}
		f.free(w, len(w.claimed.Flushes))
		f.giveBack(ctx, w)
		return
	}
	var flushes sync.WaitGroup
	for i := range w.claimed.Flushes {
		flushes.Go(func() {
			end := collectorstore.FlushEnd{Claim: &w.claimed, Flush: w.claimed.Flushes[i], Ops: ops[i]}
			ok := f.flush(ctx, w, &end)
			f.free(w, 1)
			if !ok {
				return // the end of the session frees the key
			}
			select {
			case f.ended <- end:
			case <-ctx.Done():
			}
		})
	}
	flushes.Wait()
}

func (f *Flusher) read(ctx context.Context, w *flight) ([][]collectorstore.FlushOp, error) {
	reading, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	ops, err := f.keys.ReadFlushes(reading, &w.claimed, f.node.RequestBytes())
	if late := ctx.Err() == nil && reading.Err() != nil; late || err == nil {
		f.pace(w, late)
	}
	return ops, err
}

// pace has a collector whose operations were not read in time go with fewer keys at once, down to one, until reads
// come to their end again: else the same keys would be tried indefinitely.
func (f *Flusher) pace(w *flight, late bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch most, slow := f.slow[w.collector]; {
	case late:
		f.slow[w.collector] = max(1, len(w.claimed.Flushes)/2)
	case slow && 2*most < collectorstore.NodeFlushes:
		f.slow[w.collector] = 2 * most
	case slow:
		delete(f.slow, w.collector)
	}
}

// giveBack records that nothing came of flushes that were not begun.
func (f *Flusher) giveBack(ctx context.Context, w *flight) {
	for i := range w.claimed.Flushes {
		select {
		case f.ended <- collectorstore.FlushEnd{Claim: &w.claimed, Flush: w.claimed.Flushes[i]}:
		case <-ctx.Done():
			return
		}
	}
}

// land forgets a flight whose flushes have ended.
func (f *Flusher) land(w *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.flights, w)
	w.cancel(nil)
}

// Abandon ends what is in progress for a session that is over: its keys are someone else's by now.
func (f *Flusher) Abandon(session workqueue.SessionID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.flights {
		if w.session == session {
			w.cancel(core.ErrSessionGone)
		}
	}
}

// room is how many keys of a collector may be taken.
func (f *Flusher) room(collector int32) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := 0
	for _, keys := range f.busy {
		all += keys
	}
	room := collectorstore.FlushRoom(all, f.busy[collector])
	if most, slow := f.slow[collector]; slow {
		return min(room, most-f.busy[collector])
	}
	return room
}

// free makes room for other keys.
func (f *Flusher) free(w *flight, keys int) {
	f.mu.Lock()
	if f.busy[w.collector] -= keys; f.busy[w.collector] == 0 {
		delete(f.busy, w.collector)
	}
	f.mu.Unlock()
	core.Signal(f.wakes)
}

// leave does not look at a collector for a while.
func (f *Flusher) leave(collector int32, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resting[collector] = time.Now().Add(d)
}

// rest is for how much longer a collector is not looked at.
func (f *Flusher) rest(collector int32) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := time.Until(f.resting[collector])
	if left <= 0 {
		delete(f.resting, collector)
	}
	return left
}

// Wake looks for keys now, at collectors that rested too: something may have changed.
func (f *Flusher) Wake() {
	f.mu.Lock()
	clear(f.resting)
	f.mu.Unlock()
	core.Signal(f.wakes)
}

// wakeIn looks for keys after a while. Only the first of several alarms is kept: a look finds when the next is due.
func (f *Flusher) wakeIn(d time.Duration) {
	if d <= 0 {
		core.Signal(f.wakes)
		return
	}
	if d >= f.cfg.Poll/2 {
		return // some look comes before
	}
	at := time.Now().Add(d)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.alarm.IsZero() && !at.Before(f.alarm) {
		return
	}
	f.alarm = at
	time.AfterFunc(d, func() {
		f.mu.Lock()
		if f.alarm.Equal(at) {
			f.alarm = time.Time{}
		}
		f.mu.Unlock()
		core.Signal(f.wakes)
	})
}
