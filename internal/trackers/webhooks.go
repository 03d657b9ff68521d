package trackers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/workqueue"
)

// webhookLook is how often the leader looks for webhooks that are due: another node may have ended a batch.
const webhookLook = time.Second

// WebhookStore knows which webhooks are owed; Store of workqueue/tracker is one.
type WebhookStore interface {
	DueTrackerWebhooks(ctx context.Context, room service.WebhookRoom) ([]service.Webhook, error)
	TrackerWebhookDelivered(ctx context.Context, lease workqueue.Lease, w service.Webhook) (noted bool, err error)
	TrackerWebhookFailed(
		ctx context.Context, lease workqueue.Lease, w service.Webhook, reason string, pause time.Duration, giveUp bool,
	) (noted bool, err error)
}

// WebhooksConfig is what Webhooks need beside their store.
type WebhooksConfig struct {
	Connections *connections.Connections // nil: every webhook fails, and says why
	// Transport reaches the hosts of others, and guards what must not be reached: httpfetch's.
	Transport http.RoundTripper
	Log       *zap.Logger // nil: none

	// Now returns the time that signatures bear; nil: time.Now. Receivers compare it with their clocks.
	Now func() time.Time
	// FirstRetry is the pause after a first attempt that failed; 0: 5 s.
	FirstRetry time.Duration
	// Timeout bounds an attempt; 0: 15 s.
	Timeout time.Duration
}

// Webhooks tell of the ends of batches. Their Run is a leader task.
type Webhooks struct {
	store  WebhookStore
	sender *httpfetch.Sender
	log    *zap.Logger
	retry  httpfetch.Retry
}

// NewWebhooks returns what delivers webhooks.
func NewWebhooks(store WebhookStore, config WebhooksConfig) (*Webhooks, error) {
	if store == nil || config.Transport == nil {
		return nil, errors.New("trackers: webhooks need a store and a transport")
	}
	sender, err := httpfetch.NewSender(httpfetch.SenderConfig{
		Connections: config.Connections, Transport: config.Transport, Now: config.Now, Timeout: config.Timeout,
	})
	if err != nil {
		return nil, err
	}
	w := &Webhooks{store: store, sender: sender, log: config.Log,
		retry: httpfetch.Retry{First: cmp.Or(max(config.FirstRetry, 0), firstRetry), Longest: longestRetry}}
	if w.log == nil {
		w.log = zap.NewNop()
	}
	return w, nil
}

// Run delivers what is due, until nothing is. What comes of an attempt is noted under the lease: a leader that is none
// any more notes nothing, and its successor tries again, under the same id. Attempts are independent of each other: a
// receiver that keeps one waiting delays no other, but those to its own host beyond webhooksPerHost, unless there are
// more than webhooksKept such hosts. Run returns when all of them have ended, after an error too.
func (w *Webhooks) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	under := newUnderWay(w.log)
	for {
		if err == nil { // else what is in progress is seen to its end
			err = w.begin(ctx, lease, under)
		}
		if len(under.hooks) == 0 {
			return webhookLook, err
		}
		if bad := under.await(); err == nil {
			err = bad
		}
	}
}

// begin starts an attempt at everything that is due and that there is room for.
func (w *Webhooks) begin(ctx context.Context, lease workqueue.Lease, under *underWay) error {
	due, err := w.store.DueTrackerWebhooks(ctx, under.room())
	if err != nil {
		return fmt.Errorf("look for webhooks: %w", err)
	}
	for i := range due {
		under.start(&due[i], func() error { return w.tell(ctx, lease, &due[i]) })
	}
	return nil
}

// tell makes one attempt at a webhook and notes what came of it.
func (w *Webhooks) tell(ctx context.Context, lease workqueue.Lease, hook *service.Webhook) error {
	came := w.deliver(ctx, hook)
	if ctx.Err() != nil {
		return ctx.Err() // it was cut off, and is retried by whoever leads then
	}
	log := w.log.With(zap.Stringer("batch", hook.Batch), zap.Int("attempt", hook.Attempts+1))
	if came.Delivered {
		noted, err := w.store.TrackerWebhookDelivered(ctx, lease, *hook)
		if noted {
			log.Debug("webhook delivered")
		}
		return err
	}
	give := came.GiveUp || hook.Owed >= webhookTimeout && hook.Attempts+1 >= webhookAttempts
	pause := w.retry.In(hook.Attempts+1, came.Wait)
	noted, err := w.store.TrackerWebhookFailed(ctx, lease, *hook, came.Reason(), pause, give)
	if noted && give {
		log.Warn("a webhook is given up", zap.String("why", came.Why))
	}
	return err
}

const (
	// firstRetry is the pause after the first attempt that failed; it doubles up to longestRetry, and a Retry-After
	// makes it longer up to there.
	firstRetry   = 5 * time.Second
	longestRetry = time.Hour
	// webhookTimeout is how long one is tried before it is given up, and webhookAttempts how often at the least: when
	// no one could send it, because Tranche was down, no time of its receiver's has passed.
	webhookTimeout  = 24 * time.Hour
	webhookAttempts = 12
)

// checkWebhook refuses a webhook that could not be sent.
func checkWebhook(conns *connections.Connections, set *fanout.WebhookSettings) error {
	if set == nil {
		return nil
	}
	err := httpfetch.CheckWebhook(conns, set.URL, set.Secret)
	if bad, ok := errors.AsType[*httpfetch.WebhookError](err); ok {
		place := "webhook"
		if bad.Field != "" {
			place += "." + bad.Field
		}
		return &fanout.Error{Code: fanout.CodeWebhook, Place: place, Value: echo(bad.Value), Message: bad.Why}
	}
	return err
}

// deliver makes one attempt.
func (w *Webhooks) deliver(ctx context.Context, hook *service.Webhook) httpfetch.Delivery {
	body, err := webhookBody(hook)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	return w.sender.Send(ctx, &httpfetch.Webhook{
		ID: hook.EventID.String(), URL: hook.URL, Secret: hook.Secret, Body: body,
	})
}

// webhookBody is the body of a webhook. It is the same for every attempt.
func webhookBody(hook *service.Webhook) ([]byte, error) {
	var event struct {
		Kind string    `json:"kind"`
		At   time.Time `json:"at"`
	}
	if err := json.Unmarshal(hook.Event, &event); err != nil {
		return nil, fmt.Errorf("read the event of batch %s: %w", hook.Batch, err)
	}
	return httpfetch.WebhookBody(event.Kind, event.At, hook.Event)
}

const (
	// webhooksAtOnce is how many attempts are in progress.
	webhooksAtOnce = 256
	// webhooksPerHost is how many of them are at one host, so that those that do not answer leave room for others.
	webhooksPerHost = 16
	// webhooksKept is how many of all attempts are only for hosts that have none in progress.
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

// survive makes a panic of an attempt an error of the leader task: the recover of whoever runs that is in another
// goroutine.
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
