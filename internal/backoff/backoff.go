// Package backoff waits between tries.
//
// Not its job: to try. Whoever does knows which errors pass, what is told of them, and when it is enough; a function
// that took all that would make each place longer, as those of the libraries do.
//
// Concurrency: a [Doubling] belongs to one goroutine.
package backoff

import (
	"context"
	"time"
)

// Doubling are pauses that follow one another: the first, and each twice the one before, up to the longest.
type Doubling struct {
	First, Longest time.Duration

	given int
}

// Next returns the next pause.
func (d *Doubling) Next() time.Duration {
	d.given++
	return Nth(d.First, d.Longest, d.given)
}

// Wait waits for the next pause, as [Sleep] does.
func (d *Doubling) Wait(ctx context.Context) error { return Sleep(ctx, d.Next()) }

// Reset has the pauses begin anew.
func (d *Doubling) Reset() { d.given = 0 }

// Nth returns the n-th pause of a [Doubling], from 1.
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
