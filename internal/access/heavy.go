package access

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// BusyError is returned to who has too much under way already.
type BusyError struct {
	All       bool // everybody together has
	Strangers bool // those of an address have of whom it is not known who they are
	Limit     int
}

func (e *BusyError) Error() string {
	if e.Strangers {
		return fmt.Sprintf("%d requests from this address, by nobody who has logged in, are under way, which is as many as "+
			"there may be; try again soon, or send a token that is good", e.Limit)
	}
	if e.All {
		return fmt.Sprintf("%d requests that read much are under way, which is as many as there may be; try again soon",
			e.Limit)
	}
	return fmt.Sprintf("you have %d requests under way that read much, which is as many as one may have; "+
		"wait until one has ended", e.Limit)
}

// Slots bounds how many requests of a kind are under way: for each user, and in all.
type Slots struct {
	each, all int

	mu    sync.Mutex
	taken map[string]int
	sum   int
	freed chan struct{} // closed when one is given back
}

// NewSlots returns slots of which each user may have some, and everybody together all.
func NewSlots(each, all int) *Slots {
	return &Slots{each: each, all: all, taken: map[string]int{}, freed: make(chan struct{})}
}

// Await takes a slot for a user, until it is given back. When there is none for so long it returns a BusyError.
func (s *Slots) Await(ctx context.Context, user string, patience time.Duration) (giveBack func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		s.mu.Lock()
		freed := s.freed
		s.mu.Unlock()
		giveBack, err = s.Take(user)
		if err == nil {
			return giveBack, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Take takes a slot for a user, until it is given back. It returns a BusyError when there is none.
func (s *Slots) Take(user string) (giveBack func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.sum >= s.all:
		return nil, &BusyError{All: true, Limit: s.all}
	case s.taken[user] >= s.each:
		return nil, &BusyError{Limit: s.each}
	}
	s.sum++
	s.taken[user]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sum--
		close(s.freed)
		s.freed = make(chan struct{})
		if s.taken[user]--; s.taken[user] == 0 {
			delete(s.taken, user)
		}
	}), nil
}
