package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// lastMoment is what is left for the private servers when the grace is used up.
const lastMoment = time.Second

// ending holds a stop to its grace. The API and the node have a share each, one after the other, and what is left is
// for the rest.
type ending struct {
	grace time.Duration
	begin sync.Once
	began chan struct{} // closed when the stop begins
	until time.Time     // set before
}

// newEnding returns the ending that begins when ctx ends.
func newEnding(ctx context.Context, grace time.Duration) *ending {
	e := &ending{grace: grace, began: make(chan struct{})}
	context.AfterFunc(ctx, e.start)
	return e
}

func (e *ending) start() {
	e.begin.Do(func() {
		e.until = time.Now().Add(e.grace)
		close(e.began)
	})
}

// share is what one of those who finish something may take.
func (e *ending) share() time.Duration { return e.grace * 2 / 5 }

// bounded runs f, but does not wait for it when the grace is over.
func (e *ending) bounded(what string, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		return err
	case <-e.began:
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Until(e.until)):
		return fmt.Errorf("%s did not stop within --grace %s; what it holds goes to others when its session expires",
			what, e.grace)
	}
}

// undo calls what stops the parts, the last first, and gives up at the end of the grace.
func (e *ending) undo(all []func(context.Context) error) error {
	e.start() // if nothing has, something failed
	ctx, cancel := context.WithDeadline(context.Background(), maxTime(e.until, time.Now().Add(lastMoment)))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		var err error
		for _, stop := range slices.Backward(all) {
			err = errors.Join(err, stop(ctx))
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select { // those who heed the context are about to say what they left
	case err := <-ended:
		return err
	case <-time.After(lastMoment / 2):
		return fmt.Errorf("not everything stopped within --grace %s", e.grace)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
