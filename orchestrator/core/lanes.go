package core

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
// together when they came while others were being done. One batch is at work beside others only when it is full, or has
// waited out the patience: what hangs does not hold up the rest. There are never more than most.
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

// gather takes a batch, which is empty when in is closed, and returns how many of those at work have not ended.
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
