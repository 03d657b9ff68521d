// Package backoff waits between attempts, and between log lines about them. The caller attempts and decides which
// errors are temporary and when to stop; a function for all that would make each call longer.
//
// An [Exponential] and a [Timeout] belong to one goroutine; a [Seldom] is safe for concurrent use.
package backoff

import (
	"context"
	"sync"
	"time"
)

// Exponential is a sequence of pauses: First, then doubled up to Longest.
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

// Reset restarts the sequence.
func (d *Exponential) Reset() { d.given = 0 }

// Nth returns the n-th pause of an [Exponential], from 1.
func Nth(first, longest time.Duration, n int) time.Duration {
	pause := min(first, longest)
	for ; n > 1 && pause < longest; n-- {
		if pause > longest/2 { // doubling could overflow
			return longest
		}
		pause *= 2
	}
	return pause
}

// Sleep returns after d, or earlier with the error of ctx.
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

// Timeout bounds attempts that are repeated until a server answers: each by First, by twice the time of the last
// answer, or by a quarter of the server's silence, whichever is longest, but at most by Longest. So one that is
// overloaded is waited for, and a question that was lost, as in a failover, is repeated soon.
type Timeout struct {
	First, Longest time.Duration

	silent time.Time     // since when attempts are unanswered; zero: the last one was answered
	took   time.Duration // the last one that was answered
}

// Context returns a context for an attempt, and what ends it.
func (t *Timeout) Context(ctx context.Context) (context.Context, func()) {
	begin := time.Now()
	if t.silent.IsZero() {
		t.silent = begin
	}
	ctx, cancel := context.WithTimeout(ctx, min(max(t.First, 2*t.took, begin.Sub(t.silent)/4), t.Longest))
	return ctx, func() {
		if ctx.Err() == nil {
			t.silent, t.took = time.Time{}, time.Since(begin)
		}
		cancel()
	}
}

// Seldom says when to log a persistent state: immediately, then after doubling pauses.
type Seldom struct {
	First, Longest time.Duration

	mu   sync.Mutex
	told int
	next time.Time
}

// Now reports whether to log now, and starts the next pause if so.
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

// Reset is called when the state ends: the next Now reports true.
func (s *Seldom) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.next = 0, time.Time{}
}
