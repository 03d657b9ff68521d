package service

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// Webhook is a call that is owed. It becomes due in the transaction that ends its batch.
type Webhook struct {
	Batch    uuid.UUID
	EventID  uuid.UUID       // of the event, also in the outbox
	Event    json.RawMessage // as it is published
	URL      string
	Secret   string        // the name of a secret; empty: unsigned
	Attempts int           // that failed; with the batch, the fence of what is noted about the call
	Owed     time.Duration // for how long, by the database's clock
}

// dueWebhooksSQL takes no locks; it reads tracker_service_webhooks.
const dueWebhooksSQL = `
SELECT batch_id, event_id, event, webhook_url, coalesce(webhook_secret, ''), webhook_attempts,
       clock_timestamp() - webhook_due_at
FROM tracker_service
WHERE webhook_state = 'due' AND webhook_next_at <= clock_timestamp()
ORDER BY webhook_next_at LIMIT $1`

// DueWebhooks returns calls that are to be made now, the longest due first.
func DueWebhooks(ctx context.Context, q tracker.Querier, limit int) ([]Webhook, error) {
	rows, err := q.Query(ctx, dueWebhooksSQL, page(limit))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Webhook])
}

// nextWebhookSQL reads the same index.
const nextWebhookSQL = `
SELECT min(webhook_next_at) - clock_timestamp() FROM tracker_service WHERE webhook_state = 'due'`

// NextWebhook returns how long it is until a call is due, 0 at least; ok is false when none is owed.
func NextWebhook(ctx context.Context, q tracker.Querier) (wait time.Duration, ok bool, err error) {
	var left *time.Duration
	if err := q.QueryRow(ctx, nextWebhookSQL).Scan(&left); err != nil || left == nil {
		return 0, false, err
	}
	return max(*left, 0), true, nil
}

const webhookDeliveredSQL = `
UPDATE tracker_service
SET webhook_state = 'delivered', webhook_attempts = webhook_attempts + 1, webhook_error = NULL
WHERE batch_id = $1 AND webhook_state = 'due' AND webhook_attempts = $2`

// WebhookDelivered notes that the call was answered. It reports false when somebody else noted the same attempt, or
// the batch was deleted.
func WebhookDelivered(ctx context.Context, tx pgx.Tx, w Webhook) (noted bool, err error) {
	tag, err := tx.Exec(ctx, webhookDeliveredSQL, w.Batch, w.Attempts)
	return tag.RowsAffected() == 1, wrap("note the webhook of", w.Batch, err)
}

const webhookFailedSQL = `
UPDATE tracker_service
SET webhook_attempts = webhook_attempts + 1, webhook_error = $3, webhook_next_at = clock_timestamp() + $4::interval,
    webhook_state = CASE WHEN $5 THEN 'given_up' ELSE 'due' END
WHERE batch_id = $1 AND webhook_state = 'due' AND webhook_attempts = $2`

// WebhookFailed notes why the call failed, and tries again after a pause, or never. It reports false like
// WebhookDelivered.
func WebhookFailed(ctx context.Context, tx pgx.Tx, w Webhook, reason string, pause time.Duration, giveUp bool,
) (noted bool, err error) {
	tag, err := tx.Exec(ctx, webhookFailedSQL, w.Batch, w.Attempts, reason, pause, giveUp)
	return tag.RowsAffected() == 1, wrap("note the webhook of", w.Batch, err)
}
