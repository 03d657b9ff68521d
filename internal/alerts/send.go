package alerts

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/alert"
)

const (
	// sendLook is how often the leader looks for messages that are due.
	sendLook = time.Second
	// attemptsAtOnce is how many attempts are in progress; of each rule there is one.
	attemptsAtOnce = 128
	// attemptHold is when an attempt is made again whose leader died before it could note what came of it.
	attemptHold = 30 * time.Second
	// firstRetry is the pause after the first attempt that failed; it doubles up to longestRetry, and a Retry-After
	// makes it longer up to there.
	firstRetry   = 5 * time.Second
	longestRetry = 10 * time.Minute
	// messageTimeout is how long a message is tried before it is given up, and messageAttempts how often at the least.
	// What holds then is told again.
	messageTimeout  = 24 * time.Hour
	messageAttempts = 12
)

// Send makes an attempt at everything that is due, until nothing is. Attempts are independent of each other: a receiver
// that hangs keeps none but its own rule's messages waiting. What comes of an attempt is noted under the lease, and so
// is that it is made. Send returns when all of them have ended, after an error too.
func (d *LeaderTask) Send(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	under := map[string]bool{} // the rules that have one in progress
	ended := make(chan ended, attemptsAtOnce)
	look := time.NewTicker(sendLook)
	defer look.Stop()
	for {
		if ctx.Err() == nil { // what could not be claimed is claimed at the next look, however long one hangs
			if failed := d.begin(ctx, lease, under, ended); err == nil {
				err = failed
			}
		}
		if len(under) == 0 {
			return sendLook, err
		}
		select {
		case e := <-ended:
			delete(under, e.rule)
			if err == nil {
				err = e.err
			}
		case <-look.C:
		}
	}
}

type ended struct {
	rule string
	err  error // what came of it could not be noted
}

func (d *LeaderTask) begin(ctx context.Context, lease workqueue.Lease, under map[string]bool, done chan<- ended) error {
	room := attemptsAtOnce - len(under)
	if room <= 0 {
		return nil
	}
	due, err := d.cfg.Store.Claim(ctx, lease, slices.Collect(maps.Keys(under)), room, d.hold())
	if err != nil {
		return err
	}
	for i := range due {
		a := &due[i]
		under[a.Alert] = true
		go func() { done <- ended{a.Alert, d.survive(a, func() error { return d.attempt(ctx, lease, a) })} }()
	}
	return nil
}

func (d *LeaderTask) hold() time.Duration { return attemptHold + d.cfg.Receivers.timeout }

// survive makes a panic of an attempt an error of the leader task: the recover of whoever runs that is in another
// goroutine.
func (d *LeaderTask) survive(a *alert.Attempt, attempt func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("an attempt at a message panicked", zap.String("alert", a.Alert), zap.Any("panic", p),
				zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("an attempt at a message of alert %s: panic: %v", a.Alert, p)
		}
	}()
	return attempt()
}

// attempt sends a message and notes what came of it.
func (d *LeaderTask) attempt(ctx context.Context, lease workqueue.Lease, a *alert.Attempt) error {
	came := d.tell(ctx, a)
	if ctx.Err() != nil {
		return ctx.Err() // it was cut off, and is retried by whoever leads then
	}
	log := d.log.With(zap.String("alert", a.Alert), zap.Stringer("message", a.Message), zap.Int("attempt", a.Number))
	if came.Delivered {
		noted, err := d.cfg.Store.Delivered(ctx, lease, a, came.Reason())
		if noted {
			log.Debug("message delivered")
		}
		return err
	}
	retry := httpfetch.Retry{First: d.cfg.FirstRetry, Longest: longestRetry}
	if retry.First <= 0 {
		retry.First = firstRetry
	}
	failure := alert.Failure{Reason: came.Reason(), Pause: retry.In(a.Failures+1, came.Wait),
		GiveUp: came.GiveUp || a.Test || a.Age >= messageTimeout && a.Number >= messageAttempts}
	noted, err := d.cfg.Store.Failed(ctx, lease, a, failure)
	if noted && (a.Failures == 0 || failure.GiveUp) {
		log.Warn("a receiver could not be told", zap.String("why", came.Why), zap.Bool("given_up", failure.GiveUp))
	}
	return err
}

func (d *LeaderTask) tell(ctx context.Context, a *alert.Attempt) httpfetch.Delivery {
	spec, err := readSpec(a.Alert, a.Spec)
	if err != nil {
		return httpfetch.Delivery{Why: err.Error()}
	}
	m, err := read(a, d.cfg.Receivers.public)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	return d.cfg.Receivers.tell(ctx, &spec.To, m)
}
