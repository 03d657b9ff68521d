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
	Host     string        // of the URL in lower case, with its port unless that is the usual one
	Secret   string        // the name of a secret; empty: unsigned
	Attempts int           // that failed; with the batch, the fence of what is noted about the call
	Owed     time.Duration // for how long, by the database's clock
}

// WebhookRoom is how many calls may be under way, and which of them are.
type WebhookRoom struct {
	UnderWay        []Webhook // they are not handed out again
	AtOnce, PerHost int
	// Kept of AtOnce is for hosts with none under way: those that hang, however many calls they are owed, take the room
	// of others only by being many.
	Kept int
}

// dueWebhooksSQL takes no locks. It goes from host to host by tracker_service_webhooks, and reads no more of each than
// there is room for: ten thousand calls to a host that is down cost those to others nothing. Who has the fewest under
// way comes first, and all but the first call to a host leave some room free. As a query of its own, tranche_now() is
// called once, and ends the look at a host where what is not due begins.
const dueWebhooksSQL = `
WITH RECURSIVE host AS (
    (SELECT webhook_host AS name FROM tracker_service WHERE webhook_state = 'due' ORDER BY webhook_host LIMIT 1)
    UNION ALL
    SELECT (SELECT s.webhook_host FROM tracker_service s
            WHERE s.webhook_state = 'due' AND s.webhook_host > host.name ORDER BY s.webhook_host LIMIT 1)
    FROM host WHERE host.name IS NOT NULL
), called AS (
    SELECT h.name, (SELECT count(*) FROM unnest($2::text[]) AS u (host) WHERE u.host = h.name) AS calls
    FROM host h WHERE h.name IS NOT NULL
)
SELECT d.batch_id, d.event_id, d.event, d.webhook_url, d.webhook_host, coalesce(d.webhook_secret, ''),
       d.webhook_attempts, tranche_now() - d.webhook_due_at
FROM (
    SELECT of_host.*, row_number() OVER (ORDER BY of_host.place, of_host.webhook_next_at) AS taken
    FROM called c CROSS JOIN LATERAL (
        SELECT s.*, c.calls + row_number() OVER (ORDER BY s.webhook_next_at) AS place
        FROM tracker_service s
        WHERE s.webhook_state = 'due' AND s.webhook_host = c.name AND s.webhook_next_at <= (SELECT tranche_now())
          AND s.batch_id <> ALL ($1::uuid[])
        ORDER BY s.webhook_next_at LIMIT greatest($3 - c.calls, 0)
    ) of_host
) d
WHERE d.place = 1 OR d.taken <= $5
ORDER BY d.taken LIMIT $4`

// DueWebhooks returns calls that are to be made now and that there is room for: of each host the longest due first.
func DueWebhooks(ctx context.Context, q tracker.Querier, room WebhookRoom) ([]Webhook, error) {
	free := room.AtOnce - len(room.UnderWay)
	if free <= 0 {
		return nil, nil
	}
	batches, hosts := make([]uuid.UUID, len(room.UnderWay)), make([]string, len(room.UnderWay))
	for i := range room.UnderWay {
		batches[i], hosts[i] = room.UnderWay[i].Batch, room.UnderWay[i].Host
	}
	rows, err := q.Query(ctx, dueWebhooksSQL, batches, hosts, room.PerHost, free, free-room.Kept)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Webhook])
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
SET webhook_attempts = webhook_attempts + 1, webhook_error = $3, webhook_next_at = tranche_now() + $4::interval,
    webhook_state = CASE WHEN $5 THEN 'given_up' ELSE 'due' END
WHERE batch_id = $1 AND webhook_state = 'due' AND webhook_attempts = $2`

// WebhookFailed notes why the call failed, and tries again after a pause, or never. It reports false like
// WebhookDelivered.
func WebhookFailed(ctx context.Context, tx pgx.Tx, w Webhook, reason string, pause time.Duration, giveUp bool,
) (noted bool, err error) {
	tag, err := tx.Exec(ctx, webhookFailedSQL, w.Batch, w.Attempts, reason, pause, giveUp)
	return tag.RowsAffected() == 1, wrap("note the webhook of", w.Batch, err)
}
