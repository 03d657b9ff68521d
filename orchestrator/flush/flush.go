// Package flush does a node's work for collectors: it claims due keys, sends each key's operations in one list
// request, and records the outcome.
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

// flushRest is the longest time for which a node skips a collector at its rate limit.
const flushRest = time.Second

// WakeFlush is the message that keys are due.
const WakeFlush = "flush"

// Flusher flushes collectors. A flush owns its key until it is recorded, or the node's session ends.
type Flusher struct {
	node  *core.Core
	cfg   Config
	keys  keyStore
	watch followUps
	calls *core.Calls
	sent  *sentFlushes
	wakes chan struct{}
	ended chan collectorstore.FlushEnd // to be recorded

	mu      sync.Mutex
	busy    map[int32]int // keys being flushed, by collector
	slow    map[int32]int // collectors with slow reads, with their limit of concurrent keys
	flights map[*flight]struct{}
	resting map[int32]time.Time // collectors, until when they are skipped
	alarm   time.Time           // when the next timer fires; zero: none is set
	working sync.WaitGroup
}

type flight struct {
	collector int32
	claimed   collectorstore.ClaimedFlushes
	session   workqueue.SessionID
	hold      *hold
	cancel    context.CancelCauseFunc
}

// Config configures a flusher. No field has a default.
type Config struct {
	Poll         time.Duration // shortest time between polls for keys
	SessionTTL   time.Duration // life of a session beyond its last heartbeat
	Recorders    int           // concurrent commits
	ReplyBacklog int           // bytes of buffered replies
	Limits       wire.Limits   // of replies
}

// keyStore is the part of [collectorstore.Store] used here.
type keyStore interface {
	DueCollectors(ctx context.Context) ([]collectorstore.DueCollector, error)
	ClaimFlushes(ctx context.Context, req collectorstore.FlushRequest) (collectorstore.ClaimedFlushes, error)
	ReadFlushes(ctx context.Context, claimed *collectorstore.ClaimedFlushes, bytes int64) (
		[][]collectorstore.FlushOp, error)
	RecordFlushes(ctx context.Context, ends []collectorstore.FlushEnd) ([]collectorstore.FlushRecorded, error)
	ProlongFlushes(ctx context.Context, flushes []uuid.UUID, limits []time.Duration) ([]uuid.UUID, error)
}

type followUps interface{ Add(settle.FollowUp) }

// New returns a flusher.
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

// Run flushes until ctx ends, and finishes what is in progress.
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

// look claims keys until ctx ends: when woken, when the next key is due, and every Poll.
func (f *Flusher) look(ctx, draining context.Context) {
	n := f.node
	for ctx.Err() == nil {
		wait := core.Jitter(n.Slower(f.cfg.Poll))
		if n.NC.IsConnected() { // never claim what cannot be sent
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

// round claims keys of every due collector, each a share of the free capacity. It returns the time to the next round.
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
			continue // the commit of a flush starts another round
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

// pace halves the concurrent keys of a collector with a slow read, down to one, until reads succeed: otherwise the
// same keys would be retried indefinitely.
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

// giveBack records flushes that did not begin, without a result.
func (f *Flusher) giveBack(ctx context.Context, w *flight) {
	for i := range w.claimed.Flushes {
		select {
		case f.ended <- collectorstore.FlushEnd{Claim: &w.claimed, Flush: w.claimed.Flushes[i]}:
		case <-ctx.Done():
			return
		}
	}
}

func (f *Flusher) land(w *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.flights, w)
	w.cancel(nil)
}

// Abandon cancels the flights of an expired session: other nodes own its keys by now.
func (f *Flusher) Abandon(session workqueue.SessionID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.flights {
		if w.session == session {
			w.cancel(core.ErrSessionGone)
		}
	}
}

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

func (f *Flusher) free(w *flight, keys int) {
	f.mu.Lock()
	if f.busy[w.collector] -= keys; f.busy[w.collector] == 0 {
		delete(f.busy, w.collector)
	}
	f.mu.Unlock()
}

func (f *Flusher) leave(collector int32, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resting[collector] = time.Now().Add(d)
}

func (f *Flusher) rest(collector int32) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := time.Until(f.resting[collector])
	if left <= 0 {
		delete(f.resting, collector)
	}
	return left
}

// Wake polls for keys now, also of skipped collectors: something may have changed.
func (f *Flusher) Wake() {
	f.mu.Lock()
	clear(f.resting)
	f.mu.Unlock()
	core.Signal(f.wakes)
}

// wakeIn polls for keys after d. Only the first of several timers is kept: a poll finds when the next key is due.
func (f *Flusher) wakeIn(d time.Duration) {
	if d <= 0 {
		core.Signal(f.wakes)
		return
	}
	if d >= f.cfg.Poll/2 {
		return // another poll comes first
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
