package trackers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/webhook"
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

// Webhooks tell of the ends of batches. Their Run is a duty of the leader's.
type Webhooks struct {
	store  WebhookStore
	sender *webhook.Sender
	log    *zap.Logger
	retry  webhook.Retry
}

// NewWebhooks returns what delivers webhooks.
func NewWebhooks(store WebhookStore, config WebhooksConfig) (*Webhooks, error) {
	if store == nil || config.Transport == nil {
		return nil, errors.New("trackers: webhooks need a store and a transport")
	}
	sender, err := webhook.New(webhook.Config{
		Connections: config.Connections, Transport: config.Transport, Now: config.Now, Timeout: config.Timeout,
	})
	if err != nil {
		return nil, err
	}
	w := &Webhooks{store: store, sender: sender, log: config.Log,
		retry: webhook.Retry{First: cmp.Or(max(config.FirstRetry, 0), firstRetry), Longest: longestRetry}}
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
		if err == nil { // else what is under way is seen to its end
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
		return ctx.Err() // it was cut off, and is tried again by whoever leads then
	}
	log := w.log.With(zap.Stringer("batch", hook.Batch), zap.Int("attempt", hook.Attempts+1))
	if came.Delivered {
		noted, err := w.store.TrackerWebhookDelivered(ctx, lease, *hook)
		if noted {
			log.Debug("webhook delivered")
		}
		return err
	}
	give := came.GiveUp || hook.Owed >= webhookPatience && hook.Attempts+1 >= webhookAttempts
	pause := w.retry.In(hook.Attempts+1, came.Wait)
	noted, err := w.store.TrackerWebhookFailed(ctx, lease, *hook, came.Reason(), pause, give)
	if noted && give {
		log.Warn("a webhook is given up", zap.String("why", came.Why))
	}
	return err
}
