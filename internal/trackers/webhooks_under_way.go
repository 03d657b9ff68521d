package trackers

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
)

const (
	// webhooksAtOnce is how many attempts are under way.
	webhooksAtOnce = 256
	// webhooksPerHost is how many of them are at one host, so that those that do not answer leave room for others.
	webhooksPerHost = 16
	// webhooksKept is how many of all attempts are only for hosts that have none under way.
	webhooksKept = 64
)

// underWay is the attempts that have begun and have not ended. It is for one goroutine.
type underWay struct {
	hooks map[uuid.UUID]service.Webhook // by their batches
	ended chan endedAttempt             // has room for all of them
	log   *zap.Logger
}

type endedAttempt struct {
	batch uuid.UUID
	err   error // what came of it could not be noted
}

func newUnderWay(log *zap.Logger) *underWay {
	return &underWay{hooks: map[uuid.UUID]service.Webhook{}, ended: make(chan endedAttempt, webhooksAtOnce), log: log}
}

func (u *underWay) room() service.WebhookRoom {
	room := service.WebhookRoom{AtOnce: webhooksAtOnce, PerHost: webhooksPerHost, Kept: webhooksKept}
	for _, hook := range u.hooks {
		room.UnderWay = append(room.UnderWay, hook)
	}
	return room
}

// start makes an attempt beside the others.
func (u *underWay) start(hook *service.Webhook, attempt func() error) {
	u.hooks[hook.Batch] = *hook
	go func() { u.ended <- endedAttempt{hook.Batch, u.survive(hook.Batch, attempt)} }()
}

// survive makes a panic of an attempt an error of the duty: the recover of whoever runs that is in another goroutine.
func (u *underWay) survive(batch uuid.UUID, attempt func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			u.log.Error("an attempt at a webhook panicked", zap.Stringer("batch", batch), zap.Any("panic", p),
				zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("an attempt at a webhook: panic: %v", p)
		}
	}()
	return attempt()
}

// await returns once an attempt has ended, or it is time to look for others. Those that ended at the same time are
// taken together. The error is the first of theirs.
func (u *underWay) await() (err error) {
	look := time.NewTimer(webhookLook)
	defer look.Stop()
	select {
	case e := <-u.ended:
		err = u.end(e)
	case <-look.C:
		return nil
	}
	for {
		select {
		case e := <-u.ended:
			if bad := u.end(e); err == nil {
				err = bad
			}
		default:
			return err
		}
	}
}

func (u *underWay) end(e endedAttempt) error {
	delete(u.hooks, e.batch)
	return e.err
}
