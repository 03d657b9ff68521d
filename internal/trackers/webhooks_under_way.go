package trackers

import (
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
)

const (
	// webhooksAtOnce is how many attempts are under way.
	webhooksAtOnce = 256
	// webhooksPerHost is how many of them are at one host, so that those that do not answer leave room for others.
	webhooksPerHost = 16
)

// underWay is the attempts that have begun and have not ended. It is for one goroutine.
type underWay struct {
	hooks map[uuid.UUID]service.Webhook // by their batches
	ended chan endedAttempt             // has room for all of them
}

type endedAttempt struct {
	batch uuid.UUID
	err   error // what came of it could not be noted
}

func newUnderWay() *underWay {
	return &underWay{hooks: map[uuid.UUID]service.Webhook{}, ended: make(chan endedAttempt, webhooksAtOnce)}
}

func (u *underWay) room() service.WebhookRoom {
	room := service.WebhookRoom{AtOnce: webhooksAtOnce, PerHost: webhooksPerHost}
	for _, hook := range u.hooks {
		room.UnderWay = append(room.UnderWay, hook)
	}
	return room
}

// start makes an attempt beside the others.
func (u *underWay) start(hook *service.Webhook, attempt func() error) {
	u.hooks[hook.Batch] = *hook
	go func() { u.ended <- endedAttempt{hook.Batch, attempt()} }()
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
