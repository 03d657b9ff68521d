package trackers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/workqueue"
)

// webhookLook is how often the leader looks for webhooks that are due: another node may have ended a batch.
const webhookLook = time.Second

// WebhookStore knows which webhooks are owed; *workqueue.Store is one.
type WebhookStore interface {
	DueTrackerWebhooks(ctx context.Context, limit int) (due []service.Webhook, wait time.Duration, err error)
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
}

// Webhooks tell of the ends of batches. Their Run is a duty of the leader's.
type Webhooks struct {
	store  WebhookStore
	hosts  webhookHosts
	sender *http.Client
	log    *zap.Logger
	now    func() time.Time
	first  time.Duration
}

// NewWebhooks returns what delivers webhooks.
func NewWebhooks(store WebhookStore, config WebhooksConfig) (*Webhooks, error) {
	if store == nil || config.Transport == nil {
		return nil, errors.New("trackers: webhooks need a store and a transport")
	}
	w := &Webhooks{
		store: store, hosts: webhookHosts{config.Connections}, log: config.Log, now: config.Now, first: config.FirstRetry,
		sender: &http.Client{Transport: config.Transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}
	if w.hosts.conns == nil {
		w.hosts.conns = &connections.Connections{}
	}
	if w.log == nil {
		w.log = zap.NewNop()
	}
	if w.now == nil {
		w.now = time.Now
	}
	if w.first <= 0 {
		w.first = firstRetry
	}
	return w, nil
}

// Run delivers what is due. What comes of an attempt is noted under the lease: a leader that is none any more notes
// nothing, and its successor tries again, under the same id.
func (w *Webhooks) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	for {
		due, wait, err := w.store.DueTrackerWebhooks(ctx, webhooksAtOnce)
		if err != nil {
			return 0, fmt.Errorf("look for webhooks: %w", err)
		}
		if len(due) == 0 {
			if wait <= 0 {
				wait = webhookLook
			}
			return min(wait, webhookLook), nil
		}
		errs := make([]error, len(due))
		var all sync.WaitGroup
		for i := range due {
			all.Go(func() { errs[i] = w.tell(ctx, lease, &due[i]) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return 0, err
		}
	}
}

// tell makes one attempt at a webhook and notes what came of it.
func (w *Webhooks) tell(ctx context.Context, lease workqueue.Lease, hook *service.Webhook) error {
	came := w.deliver(ctx, hook)
	if ctx.Err() != nil {
		return ctx.Err() // it was cut off, and is tried again by whoever leads then
	}
	log := w.log.With(zap.Stringer("batch", hook.Batch), zap.Int("attempt", hook.Attempts+1))
	if came.delivered {
		noted, err := w.store.TrackerWebhookDelivered(ctx, lease, *hook)
		if noted {
			log.Debug("webhook delivered")
		}
		return err
	}
	give := came.give || hook.Owed >= webhookPatience
	noted, err := w.store.TrackerWebhookFailed(ctx, lease, *hook, came.why, w.retryIn(hook.Attempts+1, came.wait), give)
	if noted && give {
		log.Warn("a webhook is given up", zap.String("why", came.why))
	}
	return err
}

// webhookBody is the body of a webhook: the type, the time and the event itself, as the standard has them. It is the
// same for every attempt.
func webhookBody(hook *service.Webhook) ([]byte, error) {
	var event struct {
		Kind string    `json:"kind"`
		At   time.Time `json:"at"`
	}
	if err := json.Unmarshal(hook.Event, &event); err != nil {
		return nil, fmt.Errorf("read the event of batch %s: %w", hook.Batch, err)
	}
	return json.Marshal(struct {
		Type      string          `json:"type"`
		Timestamp time.Time       `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}{event.Kind, event.At, hook.Event})
}
