package collector

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// FlushOp is an operation of a flush.
type FlushOp struct {
	Seq      int64
	ID       string
	Payload  []byte
	Attempts int     // that failed and count; of what was folded, the most
	Alone    bool    // it may have been what a flush failed of as a whole: no other goes with it
	Folded   []int64 // the numbers of the operations before it that were folded into it
}

const (
	// flushOps reads what of each key may go now, in order, up to its limit and a number of bytes; the first of a key goes
	// whatever its size. By collector_op_queue. In a strict collector nothing passes an operation in backoff.
	flushOps = `
SELECT k.place, o.seq, o.op_id, o.payload, o.attempts, o.alone, ''
FROM unnest($2::int[], $3::text[], $4::int[]) WITH ORDINALITY AS k (numbering, key, size, place)
CROSS JOIN LATERAL (
    SELECT w.*, row_number() OVER line AS n,
           sum(octet_length(w.payload) + octet_length(w.op_id) + 64) OVER line AS bytes,
           bool_or(w.not_before > $7) OVER line AS held
    FROM (
        SELECT q.seq, q.op_id, q.payload, q.attempts, q.alone, q.not_before, q.priority FROM collector_op q
        WHERE q.collector = $1 AND q.numbering = k.numbering AND q.key = k.key AND q.parked_at IS NULL
          AND ($6 OR q.not_before IS NULL OR q.not_before <= $7)
        ORDER BY q.priority DESC, q.seq LIMIT k.size) w
    WINDOW line AS (ORDER BY w.priority DESC, w.seq)) o
WHERE (o.bytes <= $5 OR o.n = 1) AND NOT coalesce(o.held, false)
ORDER BY k.place, o.priority DESC, o.seq`

	// foldedOps is flushOps for a collector that folds: of each key the first operations, up to $6 and a number of bytes,
	// as far as they are of the first so many values of fold. Those of a value go together, however few values fit: what
	// stood for some of them once, and may have been carried out, is not followed by an older one. One in backoff holds
	// those of its value that come after it; when it is the first of its key, the key is not due (held_until).
	foldedOps = `
SELECT k.place, o.seq, o.op_id, o.payload, o.attempts, o.alone, coalesce(o.fold, '')
FROM unnest($2::int[], $3::text[], $4::int[]) WITH ORDINALITY AS k (numbering, key, size, place)
CROSS JOIN LATERAL (
    SELECT v.*, min(v.nth) OVER (PARTITION BY v.fold, CASE WHEN v.fold IS NULL THEN v.seq END) AS rank
    FROM (
        SELECT w.*, row_number() OVER line AS n, count(*) FILTER (WHERE w.first) OVER line AS nth,
               sum(octet_length(w.payload) + octet_length(w.op_id) + 64) OVER line AS bytes
        FROM (
            SELECT q.*, q.fold IS NULL OR row_number() OVER own = 1 AS first,
                   CASE WHEN q.fold IS NULL THEN q.not_before > $7 ELSE bool_or(q.not_before > $7) OVER own END AS held
            FROM (
                SELECT q.seq, q.op_id, q.payload, q.attempts, q.alone, q.not_before, q.priority, q.fold
                FROM collector_op q
                WHERE q.collector = $1 AND q.numbering = k.numbering AND q.key = k.key AND q.parked_at IS NULL
                ORDER BY q.priority DESC, q.seq LIMIT $6) q
            WINDOW own AS (PARTITION BY q.fold ORDER BY q.seq)) w
        WHERE NOT coalesce(w.held, false)
        WINDOW line AS (ORDER BY w.priority DESC, w.seq)) v
    WHERE v.bytes <= $5 OR v.n = 1) o
WHERE o.rank <= k.size
ORDER BY k.place, o.priority DESC, o.seq`

	// dueCollectors finds the active collectors with the time of their next key, by collector_key_due: in each numbering
	// and priority that there may be, its first. What rests or may make no call yet is left to the claim.
	dueCollectors = `
SELECT c.id, c.name, extract(epoch FROM min(d.due_at) - tranche_now())::float8
FROM collector c
CROSS JOIN LATERAL generate_series(c.settled, c.numbering) AS g (numbering)
CROSS JOIN LATERAL generate_series(0, c.levels::int) AS l (priority)
CROSS JOIN LATERAL (
    SELECT k.due_at FROM collector_key k
    WHERE k.collector = c.id AND k.numbering = g.numbering AND k.priority = l.priority AND k.flush IS NULL
      AND k.due_at IS NOT NULL
    ORDER BY k.due_at LIMIT 1) d
WHERE c.state = 'active'
GROUP BY c.id, c.name
ORDER BY min(d.due_at)`
)

// ReadFlushes reads the operations of flushes, in order, and folds those of collectors that fold. bytes bounds what one
// flush brings, and the operations of a flush fit one message then; a single one that is larger comes alone. A flush of
// which nothing is left is empty.
func (s Store) ReadFlushes(ctx context.Context, claimed *ClaimedFlushes, bytes int64) ([][]FlushOp, error) {
	n := len(claimed.Flushes)
	if n == 0 {
		return nil, nil
	}
	numberings, keys, sizes := make([]int32, n), make([]string, n), make([]int32, n)
	read := make([]folding, n)
	for i, f := range claimed.Flushes {
		numberings[i], keys[i], sizes[i] = int32(f.Numbering), f.Key, int32(f.Limit)
		read[i] = folding{how: claimed.Spec.Fold, limit: f.Limit, bytes: bytes}
	}
	first := &claimed.Flushes[0]
	statement, args := flushOps, []any{first.Collector, numberings, keys, sizes, bytes, claimed.Strict, first.Claimed}
	if claimed.Spec.Fold != "" {
		statement, args[4], args[5] = foldedOps, foldedBytes*bytes, MaxFlushSize
	}
	rows := pg.Rows(ctx, s.db.Pool, statement, args...)
	var place int
	var op FlushOp
	var by string
	_, err := pgx.ForEachRow(rows, []any{&place, &op.Seq, &op.ID, &op.Payload, &op.Attempts, &op.Alone, &by},
		func() error {
			err := read[place-1].take(&op, by)
			op.Payload = nil
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("read what %d flushes of collector %s take: %w", n, claimed.Name, err)
	}
	out := make([][]FlushOp, n)
	for i := range read {
		out[i] = read[i].end()
	}
	return out, nil
}

// together is how many of the first operations go in one flush.
func together(ops []FlushOp) int {
	for i := range ops {
		if ops[i].Alone {
			return max(i, 1)
		}
	}
	return len(ops)
}

// DueCollector is a collector with keys to flush.
type DueCollector struct {
	ID   int32
	Name string
	In   time.Duration // until the first of its keys is due; 0 or less: now
}

// DueCollectors returns the active collectors that have something to flush, now or later, the longest due first.
func (s Store) DueCollectors(ctx context.Context) ([]DueCollector, error) {
	rows := pg.Rows(ctx, s.db.Pool, dueCollectors)
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DueCollector, err error) {
		var seconds float64
		err = row.Scan(&d.ID, &d.Name, &seconds)
		d.In = time.Duration(seconds * float64(time.Second))
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for keys to flush: %w", err)
	}
	return due, nil
}
