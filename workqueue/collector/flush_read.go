package collector

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// FlushOp is an operation of a flush.
type FlushOp struct {
	Seq      int64
	ID       string
	Payload  []byte
	Attempts int     // failed attempts that count; of folded operations, the most
	Refusals int     // how often the service parked it by a permanent error
	Alone    bool    // it may have caused a flush to fail: it is sent alone
	Folded   []int64 // numbers of the earlier operations folded into it
}

const (
	// flushOps reads the operations of each key that may go now, in order, up to its limit and a number of bytes, or the
	// first if larger. By collector_op_queue. In a strict collector nothing overtakes an operation in backoff.
	flushOps = `
SELECT k.place, o.seq, o.op_id, o.payload, o.attempts, o.refusals, o.retry_alone, ''
FROM unnest($2::int[], $3::text[], $4::int[]) WITH ORDINALITY AS k (key_version, key, size, place)
CROSS JOIN LATERAL (
    SELECT w.*, row_number() OVER line AS n,
           sum(octet_length(w.payload) + octet_length(w.op_id) + 64) OVER line AS bytes,
           bool_or(w.not_before > $7) OVER line AS held
    FROM (
        SELECT q.seq, q.op_id, q.payload, q.attempts, q.refusals, q.retry_alone, q.not_before, q.priority
        FROM collector_op q
        WHERE q.collector = $1 AND q.key_version = k.key_version AND q.key = k.key AND q.parked_at IS NULL
          AND ($6 OR q.not_before IS NULL OR q.not_before <= $7)
        ORDER BY q.priority DESC, q.seq LIMIT k.size) w
    WINDOW line AS (ORDER BY w.priority DESC, w.seq)) o
WHERE (o.bytes <= $5 OR o.n = 1) AND NOT coalesce(o.held, false)
ORDER BY k.place, o.priority DESC, o.seq`

	// foldedOps is flushOps for a collector that folds: the first operations of each key, up to $6 and a number of
	// bytes, restricted to as many values of fold as the flush may have. Operations of a value go together: one that
	// once included others, and may have been executed, must never be followed by an older one. One in backoff
	// holds back later ones of its value; if it is the first of its key, the key is not due (held_until).
	foldedOps = `
SELECT k.place, o.seq, o.op_id, o.payload, o.attempts, o.refusals, o.retry_alone, coalesce(o.fold, '')
FROM unnest($2::int[], $3::text[], $4::int[]) WITH ORDINALITY AS k (key_version, key, size, place)
CROSS JOIN LATERAL (
    SELECT v.*, min(v.nth) OVER (PARTITION BY v.fold, CASE WHEN v.fold IS NULL THEN v.seq END) AS rank
    FROM (
        SELECT w.*, row_number() OVER line AS n, count(*) FILTER (WHERE w.first) OVER line AS nth,
               sum(octet_length(w.payload) + octet_length(w.op_id) + 64) OVER line AS bytes
        FROM (
            SELECT q.*, q.fold IS NULL OR row_number() OVER own = 1 AS first,
                   CASE WHEN q.fold IS NULL THEN q.not_before > $7 ELSE bool_or(q.not_before > $7) OVER own END AS held
            FROM (
                SELECT q.seq, q.op_id, q.payload, q.attempts, q.refusals, q.retry_alone, q.not_before, q.priority,
                    q.fold
                FROM collector_op q
                WHERE q.collector = $1 AND q.key_version = k.key_version AND q.key = k.key AND q.parked_at IS NULL
                ORDER BY q.priority DESC, q.seq LIMIT $6) q
            WINDOW own AS (PARTITION BY q.fold ORDER BY q.seq)) w
        WHERE NOT coalesce(w.held, false)
        WINDOW line AS (ORDER BY w.priority DESC, w.seq)) v
    WHERE v.bytes <= $5 OR v.n = 1) o
WHERE o.rank <= k.size
ORDER BY k.place, o.priority DESC, o.seq`

	// dueCollectors finds the active collectors with their next due time: the first key of each possible key version
	// and priority, by collector_key_due. The claim handles rests and rates.
	dueCollectors = `
SELECT c.id, c.name, extract(epoch FROM min(d.due_at) - tranche_now())::float8
FROM collector c
CROSS JOIN LATERAL generate_series(c.drained_key_version, c.key_version) AS g (key_version)
CROSS JOIN LATERAL generate_series(0, c.levels::int) AS l (priority)
CROSS JOIN LATERAL (
    SELECT k.due_at FROM collector_key k
    WHERE k.collector = c.id AND k.key_version = g.key_version AND k.priority = l.priority AND k.flush IS NULL
      AND k.due_at IS NOT NULL
    ORDER BY k.due_at LIMIT 1) d
WHERE c.state = 'active'
GROUP BY c.id, c.name
ORDER BY min(d.due_at)`
)

// ReadFlushes reads the operations of flushes, in order, folded if the collector folds. bytes bounds each flush so
// that it fits one message; a larger operation comes alone. A flush with no operations left is empty.
func (s Store) ReadFlushes(ctx context.Context, claimed *ClaimedFlushes, bytes int64) ([][]FlushOp, error) {
	n := len(claimed.Flushes)
	if n == 0 {
		return nil, nil
	}
	keyVersions, keys, sizes := make([]int32, n), make([]string, n), make([]int32, n)
	read := make([]folding, n)
	for i, f := range claimed.Flushes {
		keyVersions[i], keys[i], sizes[i] = int32(f.KeyVersion), f.Key, int32(f.Limit)
		read[i] = folding{how: claimed.Spec.Fold, limit: f.Limit, bytes: bytes}
	}
	first := &claimed.Flushes[0]
	statement, args := flushOps, []any{first.Collector, keyVersions, keys, sizes, bytes, claimed.Strict, first.Claimed}
	if claimed.Spec.Fold != "" {
		statement, args[4], args[5] = foldedOps, foldedBytes*bytes, MaxFlushSize
	}
	rows := pg.Rows(ctx, s.db.Pool, statement, args...)
	var place int
	var op FlushOp
	var by string
	_, err := pgx.ForEachRow(rows, []any{&place, &op.Seq, &op.ID, &op.Payload, &op.Attempts, &op.Refusals, &op.Alone, &by},
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

// DueCollectors returns the active collectors with something to flush, now or later, the longest due first.
func (s Store) DueCollectors(ctx context.Context) ([]DueCollector, error) {
	rows := pg.Rows(ctx, s.db.Pool, dueCollectors)
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DueCollector, err error) {
		var seconds float64
		err = row.Scan(&d.ID, &d.Name, &seconds)
		d.In = time.Duration(seconds * float64(time.Second))
		return d, err
	})
	return due, pg.Wrap(err, "find keys to flush")
}

const (
	// worsenCollector counts concurrent failed flushes once. The row is locked after the keys, except in claims.
	worsenCollector = `
UPDATE collector
SET failures = failures + 1, failed_at = tranche_now(), failure_code = $3, failure_message = $4,
    backoff_until = CASE WHEN $5 OR failures + 1 >= $6 THEN tranche_now()
        + least($8::interval, $7::interval * power(2, least(failures + 1 - CASE WHEN $5 THEN 1 ELSE $6 END, 20))) END
WHERE id = $1 AND (failed_at IS NULL OR failed_at <= $2)`

	// noteGood records a handled flush. It clears failures before $2, when the successful flush began. Mostly a no-op.
	noteGood = `
UPDATE collector
SET last_success_at = tranche_now(), failures = CASE WHEN $2::timestamptz > failed_at THEN 0 ELSE failures END,
    backoff_until = CASE WHEN $2 > failed_at THEN NULL ELSE backoff_until END
WHERE id = $1
  AND (failures > 0 AND $2 > failed_at OR last_success_at IS NULL OR last_success_at <= tranche_now() - $3::interval)`

	// failProbe counts a flush that was a failed probe. Probes that runs have in flight are judged separately.
	failProbe = `
UPDATE endpoint_pace SET probes = $2, probe_at = tranche_now() + $3::interval
WHERE endpoint = $1 AND breaker = 'open'`
)

func (r *flushRecording) noteHealth(batch *pgx.Batch) {
	worst, dealt := -1, false
	var through *time.Time // when the last successful flush began
	for i := range r.keys {
		v, begun := &r.verdicts[i], r.ends[i].Flush.Claimed
		dealt = dealt || v.dealt
		switch v.health {
		case healthGood:
			if through == nil || begun.After(*through) {
				through = &begun
			}
		case healthBad, healthAway:
			if worst < 0 || r.worse(i, worst) {
				worst = i
			}
		case healthUnknown:
		}
	}
	if dealt {
		batch.Queue(noteGood, r.collector, through, pace.GoodFlushNote)
	}
	if worst >= 0 && through == nil {
		v := &r.verdicts[worst]
		batch.Queue(worsenCollector, r.collector, r.ends[worst].Flush.Claimed, pg.Plain(v.why.Code), pg.Plain(v.why.Message),
			v.health == healthAway, restAfter, firstRest, longestRest)
	}
}

// worse reports whether a flush is a worse sign of the endpoint's health, or an equal but later one.
func (r *flushRecording) worse(i, than int) bool {
	if a, b := r.verdicts[i].health, r.verdicts[than].health; a != b {
		return a > b
	}
	return r.ends[i].Flush.Claimed.After(r.ends[than].Flush.Claimed)
}

// noteProbes closes the breaker of an endpoint that answered a probe, or counts a failed probe. A probe that was not
// sent changes nothing: the time of the next is set.
//
// Neither does a probe whose handler failed. The service is there, so the pause need not grow; but it may be unable
// to work, which may be why runs opened the breaker. The collector rests ever longer and leaves probes to others.
func (r *flushRecording) noteProbes(ctx context.Context, tx pgx.Tx) error {
	for i := range r.keys {
		v := &r.verdicts[i]
		failed := v.failedProbe()
		if !r.ends[i].Claim.Probe || !failed && (!r.ends[i].Replied || v.told && v.health == healthBad) {
			continue
		}
		if err := r.noteProbe(ctx, tx, i, failed); err != nil {
			return err
		}
	}
	return nil
}

// failedProbe reports whether a probe failed: unreachable, or a retry requested. An overloaded service is up.
func (v *flushVerdict) failedProbe() bool {
	switch v.health {
	case healthBad:
		return !v.told
	case healthAway:
		return !v.busy
	case healthUnknown, healthGood:
	}
	return v.again && !v.dealt
}

func (r *flushRecording) noteProbe(ctx context.Context, tx pgx.Tx, i int, failed bool) error {
	c := r.ends[i].Claim
	endpoint := c.Spec.Endpoint
	var b pace.BreakerState
	if _, err := tx.Exec(ctx, pace.MakePace, endpoint); err != nil {
		return err
	}
	if err := b.Read(ctx, tx, pace.LockBreaker, endpoint); err != nil || !b.Open {
		return err
	}
	if failed {
		_, err := tx.Exec(ctx, failProbe, endpoint, b.Probes+1, pace.ProbePause(b.Probes+1))
		return err
	}
	if _, err := tx.Exec(ctx, pace.CloseBreaker, endpoint, pace.BreakerTrust); err != nil {
		return err
	}
	r.out[i].Closed = true
	return pace.NoteChange(ctx, tx, endpoint, pace.Change{What: "breaker", Before: "open", After: "closed",
		Reason: "a flush of collector " + c.Name + " was answered"})
}

const (
	// NodeFlushes is how many keys a node flushes concurrently, of all collectors.
	NodeFlushes = 128
	// keptFlushes of them are for collectors with few in progress: an unresponsive service occupies all that it may.
	keptFlushes = NodeFlushes / 4
	// fewFlushes is how many keys in progress a collector may have and still use the reserve.
	fewFlushes = 4
)

// FlushRoom returns how many more keys of a collector a node may flush that flushes all keys, own of this collector; 0
// or less: none.
func FlushRoom(all, own int) int {
	return max(NodeFlushes-keptFlushes-all, min(NodeFlushes-all, fewFlushes-own))
}

// nodesFlushing reads each live node's keys in progress by collector, by collector_key_flushing.
const nodesFlushing = `
SELECT s.id, coalesce(c.name, ''), count(k.flush)
FROM node_session s LEFT JOIN collector_key k ON k.flush IS NOT NULL AND k.session_id = s.id
LEFT JOIN collector c ON c.id = k.collector
WHERE s.ended_at IS NULL AND s.expires_at > tranche_now()
GROUP BY s.id, c.name`

// nodeFlushing is how many keys of a collector a node flushes. A node that flushes none has a row without a name.
type nodeFlushing struct {
	Node      workqueue.SessionID
	Collector string
	Keys      int
}

// crowded returns the number of nodes if none has room for the collector, and the collector with the most keys there.
func crowded(flushing []nodeFlushing, collector string) (nodes int, most nodeFlushing) {
	all, own, each := map[workqueue.SessionID]int{}, map[workqueue.SessionID]int{}, map[string]int{}
	for _, f := range flushing {
		all[f.Node] += f.Keys
		each[f.Collector] += f.Keys
		if f.Collector == collector {
			own[f.Node] = f.Keys
		}
		if n := each[f.Collector]; n > most.Keys {
			most.Collector, most.Keys = f.Collector, n
		}
	}
	for node, keys := range all {
		if FlushRoom(keys, own[node]) > 0 {
			return 0, most
		}
	}
	return len(all), most
}
