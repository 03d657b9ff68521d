package collector

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// FlushRecorded is the outcome of a recorded flush.
type FlushRecorded struct {
	Stale  bool // the key is no longer this flush's: nothing was changed
	Done   int
	Failed int // Parked of them are parked
	Parked int
	Outage bool // it ended like flushes in an outage: for Store.CheckBreaker
	Closed bool // it was a probe and closed its endpoint's breaker
}

const (
	// lockFlushes is the fence: a key belongs to a flush only while it has the flush's ID. Keys are locked in primary
	// key order, then their operations.
	lockFlushes = `
SELECT g.place, k.untried, k.retrying, k.parked
FROM unnest($2::int[], $3::text[], $4::uuid[]) WITH ORDINALITY AS g (key_version, key, flush, place)
JOIN collector_key k ON k.collector = $1 AND k.key_version = g.key_version AND k.key = g.key AND k.flush = g.flush
ORDER BY k.key_version, k.key FOR NO KEY UPDATE OF k`

	deleteOps = `DELETE FROM collector_op WHERE seq = ANY ($1) RETURNING seq, not_before IS NULL`

	// failOps returns whether each was untried. Operations of a locked key have no other writer.
	failOps = `
UPDATE collector_op o
SET attempts = f.attempts, error_code = f.code, error_message = f.message, failed_last = t.now,
    failed_first = coalesce(o.failed_first, t.now), not_before = t.now + f.pause,
    parked_at = CASE WHEN f.parked THEN t.now END, retry_alone = o.retry_alone OR f.alone,
    refusals = o.refusals + f.refused::int, folded_into = nullif(f.head, '')
FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::interval[], $6::bool[], $7::bool[], $8::bool[],
    $9::text[]) AS f (seq, attempts, code, message, pause, parked, refused, alone, head)
JOIN collector_op old ON old.seq = f.seq, (SELECT tranche_now() AS now) t
WHERE o.seq = f.seq
RETURNING o.seq, old.not_before IS NULL, f.parked`

	deleteKeys = `
DELETE FROM collector_key k USING unnest($2::uuid[], $3::int[], $4::text[]) AS g (flush, key_version, key)
WHERE k.collector = $1 AND k.key_version = g.key_version AND k.key = g.key AND k.flush = g.flush`

	// endFlushes frees keys and sets their due times by what remains: the first untried operation of each priority,
	// the next attempt of failed ones, and in a strict collector the first of all. Each is one index lookup.
	endFlushes = `
UPDATE collector_key k
SET flush = NULL, session_id = NULL, flush_until = NULL, untried = g.untried, retrying = g.retrying, parked = g.parked,
    failures = g.failures, size_limit = nullif(g.size_limit, 0), priority = coalesce(l.priority, 0),
    failed_at = CASE WHEN g.outage > 0 THEN tranche_now() WHEN g.outage < 0 THEN k.failed_at END,
    failed_ops = CASE WHEN g.outage > 0 THEN g.outage WHEN g.outage < 0 THEN k.failed_ops END,
    failed_code = CASE WHEN g.outage > 0 THEN g.code WHEN g.outage < 0 THEN k.failed_code END,
    oldest_at = l.oldest_at, retry_at = l.retry_at, held_until = l.held_until,
    due_at = collector_due(g.untried, l.oldest_at, l.retry_at, l.held_until, c.min_size, c.max_age, c.drain_at)
FROM unnest($2::uuid[], $3::int[], $4::text[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[], $10::interval[],
        $11::int[], $12::text[])
    AS g (flush, key_version, key, untried, retrying, parked, failures, size_limit, hold, outage, code)
CROSS JOIN collector c
CROSS JOIN LATERAL (
    SELECT f.oldest_at,
        (SELECT min(o.not_before) FROM collector_op o WHERE g.retrying > 0 AND o.collector = $1
            AND o.key_version = g.key_version AND o.key = g.key AND o.parked_at IS NULL AND o.not_before IS NOT NULL)
            AS retry_at,
        h.priority,
        greatest(CASE WHEN c.strict THEN h.not_before END,
            CASE WHEN g.hold > interval '0' THEN tranche_now() + g.hold END) AS held_until
    FROM (
        SELECT min(o.added_at) AS oldest_at FROM generate_series(0, c.levels::int) AS level (priority)
        CROSS JOIN LATERAL (
            SELECT q.added_at FROM collector_op q
            WHERE q.collector = $1 AND q.key_version = g.key_version AND q.key = g.key AND q.parked_at IS NULL
              AND q.priority = level.priority AND q.not_before IS NULL AND g.untried > 0
            ORDER BY q.seq LIMIT 1) o) f
    LEFT JOIN LATERAL (
        SELECT q.priority, q.not_before FROM collector_op q
        WHERE q.collector = $1 AND q.key_version = g.key_version AND q.key = g.key AND q.parked_at IS NULL
        ORDER BY q.priority DESC, q.seq LIMIT 1) h ON true) l
WHERE c.id = $1 AND k.collector = $1 AND k.key_version = g.key_version AND k.key = g.key AND k.flush = g.flush`
)

// RecordFlushes records flushes of one collector in one transaction: successful operations are deleted, failed ones
// wait for their next attempt or are parked, and the keys are freed. A flush that no longer owns its key changes
// nothing. Flushes may be of several claims; each is judged by its claim's settings.
func (s Store) RecordFlushes(ctx context.Context, ends []FlushEnd) ([]FlushRecorded, error) {
	if len(ends) == 0 {
		return nil, nil
	}
	r := &flushRecording{ends: ends, collector: ends[0].Flush.Collector, verdicts: make([]flushVerdict, len(ends))}
	for i := range ends {
		judge := newFlushJudge(ends[i].Claim)
		r.verdicts[i] = judge.judge(&ends[i])
	}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return r.run(ctx, tx) })
	return r.out, pg.Wrap(err, "record %d flushes of collector %s", len(ends), ends[0].Claim.Name)
}

type flushRecording struct {
	collector int32
	ends      []FlushEnd
	verdicts  []flushVerdict

	keys map[int]*keyLeft // by the place of the flush; only of live ones
	of   map[int64]int    // the flush of each operation
	out  []FlushRecorded
}

type keyLeft struct{ untried, retrying, parked int32 }

func (r *flushRecording) run(ctx context.Context, tx pgx.Tx) error {
	r.keys, r.of, r.out = map[int]*keyLeft{}, map[int64]int{}, make([]FlushRecorded, len(r.ends))
	if err := r.fence(ctx, tx); err != nil {
		return err
	}
	if err := r.ops(ctx, tx); err != nil {
		return err
	}
	return r.free(ctx, tx)
}

// fence locks the keys that still belong to their flushes.
func (r *flushRecording) fence(ctx context.Context, tx pgx.Tx) error {
	n := len(r.ends)
	keyVersions, keys, ids := make([]int32, n), make([]string, n), make([]uuid.UUID, n)
	for i := range r.ends {
		f := &r.ends[i].Flush
		keyVersions[i], keys[i], ids[i], r.out[i].Stale = int32(f.KeyVersion), f.Key, f.ID, true
	}
	var place int
	var left keyLeft
	err := pg.Each(pg.Rows(ctx, tx, lockFlushes, r.collector, keyVersions, keys, ids),
		[]any{&place, &left.untried, &left.retrying, &left.parked}, func() {
			own := left
			r.keys[place-1], r.out[place-1].Stale = &own, false
		})
	return pg.Wrap(err, "lock keys")
}

// ops deletes successful operations and records failures. Missing ones were dropped meanwhile.
func (r *flushRecording) ops(ctx context.Context, tx pgx.Tx) error {
	var done []int64
	var failed failedOps
	for i := range r.keys {
		for _, seq := range r.verdicts[i].done {
			r.of[seq] = i
			done = append(done, seq)
		}
		for _, f := range r.verdicts[i].failed {
			r.of[f.seq] = i
			failed.add(f.seq, &f, "")
			for _, seq := range f.folded {
				r.of[seq] = i
				failed.add(seq, &f, f.id)
			}
		}
	}
	batch := &pgx.Batch{}
	if len(done) > 0 {
		batch.Queue(deleteOps, done).Query(r.seeDone)
	}
	if len(failed.seqs) > 0 {
		batch.Queue(failOps, failed.seqs, failed.attempts, failed.codes, failed.messages, failed.pauses, failed.parked,
			failed.refused, failed.alone, failed.into).
			Query(r.seeFailed)
	}
	if batch.Len() == 0 {
		return nil
	}
	err := tx.SendBatch(ctx, batch).Close()
	return pg.Wrap(err, "write operations")
}

type failedOps struct {
	seqs                   []int64
	attempts               []int32
	codes                  []string
	messages               []string
	pauses                 []time.Duration
	parked, refused, alone []bool
	into                   []string // ID that they were folded into
}

func (f *failedOps) add(seq int64, o *opFailure, into string) {
	f.seqs, f.attempts, f.codes = append(f.seqs, seq), append(f.attempts, int32(o.attempts)), append(f.codes, o.code)
	f.messages, f.pauses, f.parked = append(f.messages, o.message), append(f.pauses, o.pause), append(f.parked, o.parked)
	f.refused, f.alone, f.into = append(f.refused, o.refused), append(f.alone, o.alone), append(f.into, into)
}

func (r *flushRecording) seeDone(rows pgx.Rows) error {
	var seq int64
	var untried bool
	return pg.Each(rows, []any{&seq, &untried}, func() {
		i := r.of[seq]
		r.out[i].Done++
		r.keys[i].take(untried)
	})
}

func (r *flushRecording) seeFailed(rows pgx.Rows) error {
	var seq int64
	var untried, parked bool
	return pg.Each(rows, []any{&seq, &untried, &parked}, func() {
		i := r.of[seq]
		r.out[i].Failed++
		r.keys[i].take(untried)
		if parked {
			r.out[i].Parked++
			r.keys[i].parked++
		} else {
			r.keys[i].retrying++
		}
	})
}

func (k *keyLeft) take(untried bool) {
	if untried {
		k.untried--
	} else {
		k.retrying--
	}
}

type flushColumns struct {
	ids                       []uuid.UUID
	keyVersions               []int32
	keys, codes               []string
	untried, retrying, parked []int32
	failures, limits          []int32
	holds                     []time.Duration
	outages                   []int32 // operations of flushes that ended like an outage; 0: another end; < 0: nothing sent
}

func (c *flushColumns) add(end *FlushEnd, left *keyLeft, v *flushVerdict) {
	f, outageOps := &end.Flush, int32(0)
	switch {
	case v.outage:
		outageOps = int32(len(end.Ops))
	case v.unasked:
		outageOps = -1
	}
	c.ids, c.keyVersions, c.keys = append(c.ids, f.ID), append(c.keyVersions, int32(f.KeyVersion)), append(c.keys, f.Key)
	c.untried, c.retrying, c.parked, c.codes = append(c.untried, left.untried), append(c.retrying, left.retrying),
		append(c.parked, left.parked), append(c.codes, pg.Plain(v.why.Code))
	c.failures, c.limits = append(c.failures, int32(v.failures)), append(c.limits, int32(v.sizeLimit))
	c.holds, c.outages = append(c.holds, v.hold), append(c.outages, outageOps)
}

func (r *flushRecording) free(ctx context.Context, tx pgx.Tx) error {
	var empty, rest flushColumns
	for i, left := range r.keys {
		r.out[i].Outage = r.verdicts[i].outage
		to := &rest
		if left.untried+left.retrying+left.parked == 0 {
			to = &empty
		}
		to.add(&r.ends[i], left, &r.verdicts[i])
	}
	batch := &pgx.Batch{}
	if len(empty.ids) > 0 {
		batch.Queue(deleteKeys, r.collector, empty.ids, empty.keyVersions, empty.keys)
	}
	if len(rest.ids) > 0 {
		batch.Queue(endFlushes, r.collector, rest.ids, rest.keyVersions, rest.keys, rest.untried, rest.retrying, rest.parked,
			rest.failures, rest.limits, rest.holds, rest.outages, rest.codes)
	}
	r.noteHealth(batch)
	if err := pg.Leave(ctx, tx, batch); err != nil {
		return fmt.Errorf("free keys: %w", err)
	}
	return r.noteProbes(ctx, tx)
}
