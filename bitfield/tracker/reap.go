package tracker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// reapGroups bounds the groups, of a kilobyte, in which one Reap counts what is pending of the batches that expire; one
// batch may have more. So it comes to its end in time, from a cold disk too.
const reapGroups = 20_000

// Reaped says what a Reap did.
type Reaped struct {
	Looked  int         // batches that were looked at
	More    bool        // there may be others
	Expired []uuid.UUID // they were idle for too long
	Deleted []uuid.UUID // they ended long ago
}

// reapCandidatesSQL locks the batch rows of those whose time may have come. It leaves out what someone is completing
// or sealing, and so waits for no one. Of those it locked it returns the first, and those behind it as long as all of
// them together have no more groups to count than $2.
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
	Locked int // with all others
}

// reapVerdictSQL runs after the lock, and so sees the batches as they will stay. An ack notes activity up to a
// twentieth of the ages late, which is added here: a batch may live a little too long, and never ends too early. A
// batch that ended is kept while its webhook is owed, and looked at again an hour later.
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

// deferReapSQL is for those whose time has not come. An ack that notes activity meanwhile comes later and writes a
// later moment.
const deferReapSQL = `
UPDATE tracker_service s
SET reap_at = greatest(d.look_at, tranche_now() + interval '1 second')
FROM unnest($1::uuid[], $2::timestamptz[]) AS d(batch_id, look_at)
WHERE s.batch_id = d.batch_id`

type verdict struct {
	Batch     uuid.UUID
	Live, Due bool
	LookAt    time.Time // when it is not due
}

// Reap ends at most limit batches whose time has come: open and sealed ones expire when no one touched them for their
// age, with an event; what ended is deleted after Keep. Of large batches it ends fewer. It is the leader's, in a
// transaction that holds the lease.
func Reap(ctx context.Context, tx pgx.Tx, limit int) (Reaped, error) {
	return reapOf(ctx, tx, limit, reapGroups)
}

func reapOf(ctx context.Context, tx pgx.Tx, limit, groups int) (Reaped, error) {
	rows, err := tx.Query(ctx, reapCandidatesSQL, limit, groups)
	if err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[candidate])
	if err != nil || len(due) == 0 {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	ids := make([]uuid.UUID, len(due))
	for i := range due {
		ids[i] = due[i].Batch
	}
	if rows, err = tx.Query(ctx, reapVerdictSQL, ids); err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	verdicts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[verdict])
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

// WebhookRoom is how many calls may be in progress, and which of them are.
type WebhookRoom struct {
	UnderWay        []Webhook // they are not handed out again
	AtOnce, PerHost int
	// Kept of AtOnce is for hosts with none in progress: those that hang, however many calls they are owed, take the room
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
func DueWebhooks(ctx context.Context, q Querier, room WebhookRoom) ([]Webhook, error) {
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

const noteWebhookSQL = `
UPDATE tracker_service
SET webhook_attempts = webhook_attempts + 1, webhook_state = $3, webhook_error = nullif($4, ''),
    webhook_next_at = tranche_now() + $5::interval
WHERE batch_id = $1 AND webhook_state = 'due' AND webhook_attempts = $2`

// WebhookState is where a webhook stands.
type WebhookState string

// The states of a webhook. Before there is anything to tell it has none.
const (
	WebhookNone      WebhookState = "none"
	WebhookDue       WebhookState = "due"
	WebhookDelivered WebhookState = "delivered"
	WebhookGivenUp   WebhookState = "given_up"
)

// NoteWebhook notes what came of a call: the state that it is in now, why it failed, and, when it is due again, the
// pause until then. It reports false when someone else noted the same attempt, or the tracker was deleted.
func NoteWebhook(ctx context.Context, tx pgx.Tx, w Webhook, state WebhookState, reason string, pause time.Duration,
) (noted bool, err error) {
	tag, err := tx.Exec(ctx, noteWebhookSQL, w.Batch, w.Attempts, string(state), reason, pause)
	return tag.RowsAffected() == 1, wrap("note the webhook of", w.Batch, err)
}
