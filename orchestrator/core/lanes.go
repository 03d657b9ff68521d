package core

import (
	"maps"
	"sync"
	"time"
)

// Lanes are two queues with their own workers, so that runs of a few items do not queue behind those of millions.
type Lanes[T any] struct{ small, large chan T }

// NewLanes returns lanes with the given capacity each.
func NewLanes[T any](room int) Lanes[T] { return Lanes[T]{make(chan T, room), make(chan T, room)} }

// Of returns the lane for small or large work.
func (l Lanes[T]) Of(small bool) chan<- T {
	if small {
		return l.small
	}
	return l.large
}

// Work starts this many workers per lane. They end when the lanes are closed and empty.
func (l Lanes[T]) Work(workers int, work func(<-chan T)) *sync.WaitGroup {
	var working sync.WaitGroup
	for range workers {
		working.Go(func() { work(l.small) })
		working.Go(func() { work(l.large) })
	}
	return &working
}

// Close closes both lanes.
func (l Lanes[T]) Close() {
	close(l.small)
	close(l.large)
}

// Batch passes on what arrives, in batches, until in is closed and all is done. A single thing goes to an idle Batch
// immediately; what arrives during a call of do forms the next batch. Only a full batch, or one older than patience,
// runs concurrently with others, at most most: a call that hangs does not hold up the rest.
func Batch[T any](in <-chan T, most int, patience time.Duration, full func([]T) bool, do func([]T)) {
	ended, working := make(chan struct{}), 0
	for {
		batch, left := gather(in, ended, working, patience, full)
		if working = left; len(batch) == 0 {
			break
		}
		if working == most {
			<-ended
			working--
		}
		working++
		go func() {
			do(batch)
			ended <- struct{}{}
		}()
	}
	for ; working > 0; working-- {
		<-ended
	}
}

// gather collects a batch, empty when in is closed, and returns how many batches are still running.
func gather[T any](
	in <-chan T, ended <-chan struct{}, working int, patience time.Duration, full func([]T) bool,
) (batch []T, left int) {
	var late <-chan time.Time
	for !full(batch) && (len(batch) == 0 || working > 0 || len(in) > 0) {
		select {
		case next, open := <-in:
			if !open {
				return batch, working
			}
			if batch = append(batch, next); late == nil {
				late = time.After(patience)
			}
		case <-ended:
			working--
		case <-late:
			return batch, working
		}
	}
	return batch, working
}

// replySoon is how long after its publication a reply is awaited, and maxAwaited how many are: then all are forgotten.
const replySoon, maxAwaited = time.Second, 1000

// Awaited knows which replies to this node's requests may come any moment, so that nothing waits for more once the last
// one is there. It only saves time: replies may also come to other nodes, or never.
type Awaited struct {
	mu   sync.Mutex
	sent map[string]time.Time // slices
	none chan struct{}        // closed when the last one came; nil: no one waits
}

// Sent notes that the request of a slice is being published.
func (a *Awaited) Sent(slice string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sent == nil || len(a.sent) == maxAwaited {
		a.sent = map[string]time.Time{}
	}
	a.sent[slice] = time.Now()
}

// Came notes that a reply has come.
func (a *Awaited) Came(slice string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if delete(a.sent, slice); len(a.sent) == 0 && a.none != nil {
		close(a.none)
		a.none = nil
	}
}

// None returns a channel that is closed when no replies are awaited.
func (a *Awaited) None() <-chan struct{} {
	a.mu.Lock()
	if a.none == nil {
		a.none = make(chan struct{})
	}
	none := a.none
	maps.DeleteFunc(a.sent, func(_ string, at time.Time) bool { return time.Since(at) > replySoon })
	a.mu.Unlock()
	a.Came("") // there may be none
	return none
}
