// Package backoff waits between tries, and between the lines of a log that tell of them.
//
// Not its job: to try. Whoever does knows which errors pass, what is told of them, and when it is enough; a function
// that took all that would make each place longer, as those of the libraries do.
//
// Concurrency: a [Exponential] belongs to one goroutine; a [Seldom] is safe for concurrent use.
package backoff

import (
	"context"
	"sync"
	"time"
)

// Exponential are pauses that follow one another: the first, and each twice the one before, up to the longest.
type Exponential struct {
	First, Longest time.Duration

	given int
}

// Next returns the next pause.
func (d *Exponential) Next() time.Duration {
	d.given++
	return Nth(d.First, d.Longest, d.given)
}

// Wait waits for the next pause, as [Sleep] does.
func (d *Exponential) Wait(ctx context.Context) error { return Sleep(ctx, d.Next()) }

// Reset has the pauses begin again.
func (d *Exponential) Reset() { d.given = 0 }

// Nth returns the n-th pause of a [Exponential], from 1.
func Nth(first, longest time.Duration, n int) time.Duration {
	pause := min(first, longest)
	for ; n > 1 && pause < longest; n-- {
		if pause > longest/2 { // twice that may be more than a Duration holds
			return longest
		}
		pause *= 2
	}
	return pause
}

// Sleep returns after d, or sooner, with its error, when ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Seldom says when what goes on is to be told: at once, and then again after pauses that double.
type Seldom struct {
	First, Longest time.Duration

	mu   sync.Mutex
	told int
	next time.Time
}

// Now reports whether it is time to tell; then it is not for a while.
func (s *Seldom) Now() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.next) {
		return false
	}
	s.told++
	s.next = time.Now().Add(Nth(s.First, s.Longest, s.told))
	return true
}

// Reset makes it time to tell: what went on has ended.
func (s *Seldom) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.next = 0, time.Time{}
}
