package health

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// ParkedOps counts the operations of a collector that wait for somebody.
type ParkedOps struct {
	Collector string
	Ops       int64 // MaxCounted at the most
	Since     time.Time
}

// LateCollector is a collector with a key that should have been flushed long ago.
type LateCollector struct {
	Collector string
	Endpoint  string
	State     string
	PausedBy  string
	Since     time.Time // when the key should have been flushed
	Code      string    // of the last flush that came to nothing, when no other has come after it
	Message   string
}

// HungFlush is a collector with a flush that is under way for too long.
type HungFlush struct {
	Collector string
	Endpoint  string
	Key       string
	Since     time.Time     // when it was begun
	Timeout   time.Duration // what it may take
	Code      string        // of the last flush that came to nothing, when no other has come after it
	Message   string
}

// RefusingCollector is a collector that takes no operations, as what it stores with them cannot be had.
type RefusingCollector struct {
	Collector string
	Since     time.Time
	Last      time.Time // when it was last noted
	Problem   string
}

// Not waits: refusals that were noted within it are told of.
const refusedWindow = 24 * time.Hour

// hungAfter is how much longer than its time-out a flush may be under way before it is told of: its key is free
// [dispatch.DefaultClaimTTL] after that, unless its request was sent again.
const hungAfter = time.Minute

const (
	// Collectors are few; collector_op_parked.
	healthParked = `
SELECT c.name, p.ops, p.since
FROM collector c CROSS JOIN LATERAL (
    SELECT count(*) AS ops, min(parked_at) AS since FROM (
        SELECT parked_at FROM collector_op o WHERE o.collector = c.id AND parked_at IS NOT NULL
        ORDER BY seq LIMIT $1) AS few) p
WHERE c.state <> 'deleting' AND p.ops > 0
ORDER BY p.ops DESC, c.name LIMIT $2`

	// collector_key_due, once for each numbering and priority that there may be. A key that is full is due since its
	// oldest operation was added, up to max_age before it was.
	healthLateFlushes = `
SELECT c.name, c.endpoint, c.state, c.paused_by, d.due_at + c.max_age,
    CASE WHEN c.failures > 0 THEN c.failure_code ELSE '' END,
    CASE WHEN c.failures > 0 THEN c.failure_message ELSE '' END
FROM collector c CROSS JOIN LATERAL (
    SELECT min(first.due_at) AS due_at
    FROM generate_series(c.settled, c.numbering) AS n CROSS JOIN generate_series(0, c.levels) AS p
    CROSS JOIN LATERAL (
        SELECT due_at FROM collector_key k
        WHERE k.collector = c.id AND k.numbering = n AND k.priority = p AND flush IS NULL AND due_at IS NOT NULL
        ORDER BY due_at LIMIT 1) first) d
WHERE c.state <> 'deleting' AND d.due_at < tranche_now() - c.max_age - $1::interval
ORDER BY 5, 1 LIMIT $2`

	// collector_key_flushing. A flush may take as long as its time-out says; but where one has come to nothing already,
	// the next need not last for an hour before somebody is told.
	healthHungFlushes = `
SELECT c.name, c.endpoint, k.key, k.flushed_at, c.timeout,
    CASE WHEN c.failures > 0 THEN c.failure_code ELSE '' END,
    CASE WHEN c.failures > 0 THEN c.failure_message ELSE '' END
FROM collector c CROSS JOIN LATERAL (
    SELECT key, flushed_at FROM collector_key f
    WHERE f.collector = c.id AND f.flush IS NOT NULL ORDER BY flushed_at LIMIT 1) k
WHERE c.state <> 'deleting' AND (k.flushed_at < tranche_now() - c.timeout - $1::interval
    OR c.failures > 0 AND k.flushed_at < tranche_now() - $2::interval)
ORDER BY 4, 1 LIMIT $3`

	healthRefusals = `
SELECT name, refused_since, refused_at, refused_for FROM collector
WHERE state <> 'deleting' AND refused_since IS NOT NULL AND refused_at > tranche_now() - $1::interval
ORDER BY 2, 1 LIMIT $2`
)

func (f *Facts) queueCollectors(b *pgx.Batch, l Limits) {
	queueRows(b, &f.CollectorsParked, healthParked, MaxCounted, l.Listed)
	queueRows(b, &f.CollectorsLate, healthLateFlushes, l.Waiting, l.Listed)
	queueRows(b, &f.FlushesHung, healthHungFlushes, hungAfter, l.Waiting, l.Listed)
	queueRows(b, &f.CollectorsRefusing, healthRefusals, refusedWindow, l.Listed)
}
