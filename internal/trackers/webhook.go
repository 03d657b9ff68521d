package trackers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/webhook"
)

const (
	// firstRetry is the pause after the first attempt that failed; it doubles up to longestRetry, and a Retry-After
	// makes it longer up to there.
	firstRetry   = 5 * time.Second
	longestRetry = time.Hour
	// webhookPatience is how long one is tried before it is given up, and webhookAttempts how often at the least: when
	// nobody could send it, because Tranche was down, no time of its receiver's has passed.
	webhookPatience = 24 * time.Hour
	webhookAttempts = 12
)

// checkWebhook refuses a webhook that could not be sent.
func checkWebhook(conns *connections.Connections, set *fanout.WebhookSettings) error {
	if set == nil {
		return nil
	}
	err := webhook.Check(conns, set.URL, set.Secret)
	if bad, ok := errors.AsType[*webhook.BadError](err); ok {
		place := "webhook"
		if bad.Field != "" {
			place += "." + bad.Field
		}
		return &fanout.Error{Code: fanout.CodeWebhook, Place: place, Value: echo(bad.Value), Message: bad.Why}
	}
	return err
}

// deliver makes one attempt.
func (w *Webhooks) deliver(ctx context.Context, hook *service.Webhook) webhook.Outcome {
	body, err := webhookBody(hook)
	if err != nil {
		return webhook.Outcome{GiveUp: true, Why: err.Error()}
	}
	return w.sender.Send(ctx, &webhook.Message{
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
	return webhook.Body(event.Kind, event.At, hook.Event)
}
