package tracker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// reapGroups bounds the groups, of a kilobyte each, that one Reap counts in expiring batches, so that it ends soon
// even on a cold disk. One batch may exceed it.
const reapGroups = 20_000

// Reaped is the result of a Reap.
type Reaped struct {
	Looked  int         // batches checked
	More    bool        // there may be more
	Expired []uuid.UUID // idle for too long
	Deleted []uuid.UUID // ended long ago
}

// reapCandidatesSQL locks the batch rows whose time may have come. It skips rows being completed or sealed, so it
// waits for nothing. Of the locked rows it returns the first, and those after it while their groups to count total at
// most $2.
const reapCandidatesSQL = `
SELECT batch_id, locked
FROM (
    SELECT batch_id, reap_at, sum(groups) OVER (ORDER BY reap_at, batch_id) AS total,
        row_number() OVER (ORDER BY reap_at, batch_id) AS place, count(*) OVER () AS locked
    FROM (
        SELECT s.batch_id, s.reap_at, CASE WHEN b.state IN ('open', 'sealed') THEN b.groups ELSE 0 END AS groups
        FROM tracker_service s JOIN tracker_batch b ON b.id = s.batch_id
        WHERE s.reap_at <= tranche_now() AND s.deleted_at IS NULL
        ORDER BY s.reap_at LIMIT $1
        FOR NO KEY UPDATE OF b SKIP LOCKED
    ) due
) ordered
WHERE place = 1 OR total <= $2`

type candidate struct {
	Batch  uuid.UUID
	Locked int // number of rows locked
}

// reapVerdictSQL runs after the lock, so it sees the batches' final state. Acks record activity up to a twentieth of
// the ages late; that is added here, so a batch may live slightly longer, but never ends early. An ended batch with a
// pending webhook is kept and checked again after an hour.
const reapVerdictSQL = `
SELECT v.batch_id, v.live, v.due_at <= tranche_now() AND (v.live OR NOT v.owed),
    CASE WHEN v.live OR NOT v.owed THEN v.due_at ELSE greatest(v.due_at, tranche_now() + interval '1 hour') END
FROM (
    SELECT s.batch_id, b.state IN ('open', 'sealed') AS live, s.webhook_state = 'due' AS owed,
        CASE b.state
            WHEN 'open' THEN greatest(s.active_at, b.active_at) + s.open_idle
            WHEN 'sealed' THEN greatest(s.active_at, b.active_at) + s.sealed_idle
            ELSE coalesce(b.completed_at, s.expired_at, s.active_at) + s.keep
        END + CASE WHEN b.state IN ('open', 'sealed')
            THEN greatest(interval '1 second', least(s.open_idle, s.sealed_idle) / 20)
            ELSE interval '0' END AS due_at
    FROM tracker_service s JOIN tracker_batch b ON b.id = s.batch_id
    WHERE s.batch_id = ANY ($1)
) v
ORDER BY v.batch_id`

// deferReapSQL reschedules batches that are not due. A concurrent ack writes a later time afterwards.
const deferReapSQL = `
UPDATE tracker_service s
SET reap_at = greatest(d.look_at, tranche_now() + interval '1 second')
FROM unnest($1::uuid[], $2::timestamptz[]) AS d(batch_id, look_at)
WHERE s.batch_id = d.batch_id`

type verdict struct {
	Batch     uuid.UUID
	Live, Due bool
	LookAt    time.Time // if not due
}

// Reap ends at most limit batches, fewer if they are large. Open and sealed ones idle for their age expire, with an
// event; ended ones are deleted after Keep. Only the leader calls it, in a transaction that holds the lease.
func Reap(ctx context.Context, tx pgx.Tx, limit int) (Reaped, error) {
	return reapOf(ctx, tx, limit, reapGroups)
}

func reapOf(ctx context.Context, tx pgx.Tx, limit, groups int) (Reaped, error) {
	due, err := pgx.CollectRows(rowsOf(ctx, tx, reapCandidatesSQL, limit, groups), pgx.RowToStructByPos[candidate])
	if err != nil || len(due) == 0 {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	ids := make([]uuid.UUID, len(due))
	for i := range due {
		ids[i] = due[i].Batch
	}
	verdicts, err := pgx.CollectRows(rowsOf(ctx, tx, reapVerdictSQL, ids), pgx.RowToStructByPos[verdict])
	if err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	done, err := carryOut(ctx, tx, verdicts)
	done.More = due[0].Locked == limit || due[0].Locked > len(due)
	return done, err
}

func carryOut(ctx context.Context, tx pgx.Tx, verdicts []verdict) (Reaped, error) {
	done := Reaped{Looked: len(verdicts)}
	var (
		later []uuid.UUID
		when  []time.Time
		after = &pgx.Batch{}
	)
	for _, v := range verdicts {
		switch {
		case !v.Due:
			later, when = append(later, v.Batch), append(when, v.LookAt)
		case v.Live:
			if err := Cancel(ctx, tx, v.Batch); err != nil {
				return Reaped{}, err
			}
			queueEnd(after, v.Batch, EventExpired)
			done.Expired = append(done.Expired, v.Batch)
		default:
			done.Deleted = append(done.Deleted, v.Batch)
		}
	}
	after.Queue(deferReapSQL, later, when)
	after.Queue(markDeletedSQL, done.Deleted)
	if err := tx.SendBatch(ctx, after).Close(); err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	return done, nil
}

// Webhook is a pending webhook call. It becomes due in the transaction that ends its batch.
type Webhook struct {
	Batch    uuid.UUID
	EventID  uuid.UUID       // of the event, as in the outbox
	Event    json.RawMessage // as published
	URL      string
	Host     string        // in lower case, with a non-default port
	Secret   string        // name of a secret; empty: unsigned
	Attempts int           // failed ones; with the batch, the fence for recording an attempt
	Owed     time.Duration // by the database's clock
}

// WebhookRoom is the capacity for webhook calls and the calls in progress.
type WebhookRoom struct {
	UnderWay        []Webhook // not returned again
	AtOnce, PerHost int
	// Kept of AtOnce is reserved for hosts without calls in progress, so that hanging hosts do not block others.
	Kept int
}

// dueWebhooksSQL takes no locks. It goes from host to host by tracker_service_webhooks and reads at most each host's
// free capacity: ten thousand calls to a dead host do not delay others. Hosts with the fewest calls in progress come
// first, and all but a host's first call leave the reserve free. The subquery calls tranche_now() once, so the index
// scan of a host ends at the first call not due.
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

// DueWebhooks returns the calls to make now, within capacity: for each host the longest due first.
func DueWebhooks(ctx context.Context, q Querier, room WebhookRoom) ([]Webhook, error) {
	free := room.AtOnce - len(room.UnderWay)
	if free <= 0 {
		return nil, nil
	}
	batches, hosts := make([]uuid.UUID, len(room.UnderWay)), make([]string, len(room.UnderWay))
	for i := range room.UnderWay {
		batches[i], hosts[i] = room.UnderWay[i].Batch, room.UnderWay[i].Host
	}
	rows := rowsOf(ctx, q, dueWebhooksSQL, batches, hosts, room.PerHost, free, free-room.Kept)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Webhook])
}

const noteWebhookSQL = `
UPDATE tracker_service
SET webhook_attempts = webhook_attempts + 1, webhook_state = $3, webhook_error = nullif($4, ''),
    webhook_next_at = tranche_now() + $5::interval
WHERE batch_id = $1 AND webhook_state = 'due' AND webhook_attempts = $2`

// WebhookState is the state of a webhook.
type WebhookState string

// States of a webhook; none before its batch ends.
const (
	WebhookNone      WebhookState = "none"
	WebhookDue       WebhookState = "due"
	WebhookDelivered WebhookState = "delivered"
	WebhookGivenUp   WebhookState = "given_up"
)

// NoteWebhook records an attempt: the new state, the error, and the pause if it is due again. It returns false if the
// attempt was already recorded or the tracker deleted.
func NoteWebhook(ctx context.Context, tx pgx.Tx, w Webhook, state WebhookState, reason string, pause time.Duration,
) (noted bool, err error) {
	tag, err := tx.Exec(ctx, noteWebhookSQL, w.Batch, w.Attempts, string(state), reason, pause)
	return tag.RowsAffected() == 1, wrap("note the webhook of", w.Batch, err)
}
