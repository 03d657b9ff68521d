package kernel

import (
	"sync"
	"time"
)

// Lanes are two queues, with workers of their own: what is small does not stand in line behind what is large, so that a
// run of a few items goes by one of millions.
type Lanes[T any] struct{ small, large chan T }

// NewLanes has room for so many in each lane.
func NewLanes[T any](room int) Lanes[T] { return Lanes[T]{make(chan T, room), make(chan T, room)} }

// Of is the lane of something.
func (l Lanes[T]) Of(small bool) chan<- T {
	if small {
		return l.small
	}
	return l.large
}

// Work has so many workers for each lane, until the lanes are closed and empty.
func (l Lanes[T]) Work(workers int, work func(<-chan T)) *sync.WaitGroup {
	var working sync.WaitGroup
	for range workers {
		working.Go(func() { work(l.small) })
		working.Go(func() { work(l.large) })
	}
	return &working
}

// Close ends both lanes.
func (l Lanes[T]) Close() {
	close(l.small)
	close(l.large)
}

// Batch hands on what comes, in batches, until in is closed and all is done: one thing at once when there is one, many
// together when they came while others were being done. One is at work beside others only when it is full, or has waited
// out the patience: what hangs does not hold up the rest. There are never more than most.
func Batch[T any](in <-chan T, most int, patience time.Duration, full func([]T) bool, do func([]T)) {
	ended, working := make(chan struct{}), 0
	for open := true; open; {
		var batch []T
		var late <-chan time.Time
		waited := false
		for open && !waited && !full(batch) && (len(batch) == 0 || working > 0 || len(in) > 0) {
			var next T
			select {
			case next, open = <-in:
				if open {
					batch = append(batch, next)
				}
				if late == nil {
					late = time.After(patience)
				}
			case <-late:
				waited = true
			case <-ended:
				working--
			}
		}
		if len(batch) == 0 {
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
