package service

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// EventKind says how a batch ended. The events are rows of run_event, whose run is the batch, published on
// tranche.event.<kind>.
type EventKind string

// The kinds of event. A batch has one of them, once.
const (
	EventCompleted EventKind = "tracker.completed"
	EventExpired   EventKind = "tracker.expired"
)

// endSQL notes the end of a batch whose row the transaction has locked. As a statement of its own it sees everything
// that was committed before that lock was had, so it counts right; event_id makes it happen once. The payload is the
// event as everybody gets it, and names at most a hundred codes, the most frequent ones.
//
// The id of the event follows from the batch: a database that went back in time ends again what it had ended before,
// and who hears of it again hears the same. One that is opened under an id that was another one's before is another
// batch.
const endSQL = `
WITH code AS MATERIALIZED (
    SELECT code, sum(bit_count(mask)) AS items FROM tracker_failed WHERE batch_id = $1 GROUP BY code
), top AS (
    SELECT coalesce(jsonb_object_agg(code, items), '{}') AS codes
    FROM (SELECT code, items FROM code ORDER BY items DESC, code LIMIT 100) c
), total AS (
    SELECT b.items, coalesce((SELECT sum(items) FROM code), 0) AS failed,
           CASE $2::text WHEN 'tracker.completed' THEN 0 ELSE coalesce((
               SELECT sum(bit_count(g.pending)) FROM tracker_group g WHERE g.batch_id = $1), 0) END AS pending,
           encode(substr(sha256(convert_to(concat_ws(' ', b.id, extract(epoch FROM b.created_at), $2::text), 'UTF8')),
               1, 16), 'hex')::uuid AS event_id
    FROM tracker_batch b WHERE b.id = $1
), ended AS (
    UPDATE tracker_service s
    SET event_id        = t.event_id,
        event           = jsonb_build_object('id', t.event_id, 'kind', $2::text, 'at', tranche_now(),
                              'batch', s.batch_id, 'owner', s.owner, 'key', s.key, 'items', t.items,
                              'done', t.items - t.failed - t.pending, 'failed', t.failed, 'pending', t.pending,
                              'codes', top.codes),
        active_at       = CASE $2::text WHEN 'tracker.completed' THEN tranche_now() ELSE s.active_at END,
        expired_at      = CASE $2::text WHEN 'tracker.expired' THEN tranche_now() END,
        reap_at         = tranche_now() + s.keep,
        webhook_state   = CASE WHEN s.webhook_url IS NULL THEN 'none' ELSE 'due' END,
        webhook_due_at  = tranche_now(),
        webhook_next_at = tranche_now()
    FROM total t, top
    WHERE s.batch_id = $1 AND s.event_id IS NULL AND s.deleted_at IS NULL
    RETURNING s.event_id, s.event
)
INSERT INTO run_event (id, run_id, generation, kind, payload) SELECT event_id, $1, 1, $2, event FROM ended`

// queueEnd adds the event of a batch that ended in this transaction, and what follows from it.
func queueEnd(b *pgx.Batch, batch uuid.UUID, kind EventKind) {
	b.Queue(endSQL, batch, string(kind))
}
