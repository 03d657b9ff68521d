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
	// sendLook is the interval for checking for due messages.
	sendLook = time.Second
	// attemptsAtOnce limits concurrent attempts; each rule has one at most.
	attemptsAtOnce = 128
	// attemptHold is when an attempt is retried whose leader died before recording its outcome.
	attemptHold = 30 * time.Second
	// firstRetry is the pause after the first failed attempt. It doubles up to longestRetry; a Retry-After can lengthen
	// it up to that.
	firstRetry   = 5 * time.Second
	longestRetry = 10 * time.Minute
	// messageTimeout is how long a message is retried, and messageAttempts the minimum number of attempts. After it is
	// dropped, conditions that still hold are reported again.
	messageTimeout  = 24 * time.Hour
	messageAttempts = 12
)

// Send attempts everything due until nothing is. Attempts are independent: a hanging receiver delays only its own
// rule's messages. An attempt and its outcome are recorded under the lease. Send returns when all attempts have
// ended, also after an error.
func (d *LeaderTask) Send(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	under := map[string]bool{} // rules with an attempt in progress
	ended := make(chan ended, attemptsAtOnce)
	look := time.NewTicker(sendLook)
	defer look.Stop()
	for {
		if ctx.Err() == nil { // failed claims are repeated at the next tick, even while an attempt hangs
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
	err  error // the outcome could not be recorded
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

// survive turns a panic of an attempt into an error of the leader task, whose recover is in another goroutine.
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

func (d *LeaderTask) attempt(ctx context.Context, lease workqueue.Lease, a *alert.Attempt) error {
	came := d.tell(ctx, a)
	if ctx.Err() != nil {
		return ctx.Err() // interrupted; the next leader retries it
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
