package orchestrator

import "sync"

// lanes are two queues, with workers of their own: what is small does not stand in line behind what is large, so that a
// run of a few items goes by one of millions.
type lanes[T any] struct{ small, large chan T }

func newLanes[T any](room int) lanes[T] { return lanes[T]{make(chan T, room), make(chan T, room)} }

// of is the lane of something.
func (l lanes[T]) of(small bool) chan<- T {
	if small {
		return l.small
	}
	return l.large
}

// work has so many workers for each lane, until the lanes are closed and empty.
func (l lanes[T]) work(workers int, work func(<-chan T)) *sync.WaitGroup {
	var working sync.WaitGroup
	for range workers {
		working.Go(func() { work(l.small) })
		working.Go(func() { work(l.large) })
	}
	return &working
}

func (l lanes[T]) close() {
	close(l.small)
	close(l.large)
}
