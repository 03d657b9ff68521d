package pace

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// BreakerState is the breaker's part of an endpoint_pace row.
type BreakerState struct {
	Open    bool
	since   *time.Time         // last change; nil: it was never open
	Probes  int                // failed since it opened
	probe   *workqueue.SliceID // the last one, until it is judged
	trusted bool               // it recently answered a probe
	vouched bool               // an operator recently closed it
}

// readBreaker takes no lock: settling slices must not wait for claims. No row means closed.
const readBreaker = `
SELECT breaker = 'open', breaker_since, probes, probe_slice, coalesce(breaker_suppressed_until > tranche_now(), false),
       coalesce(breaker = 'closed' AND breaker_reason <> '' AND breaker_suppressed_until > tranche_now(), false)
FROM endpoint_pace WHERE endpoint = $1`

func (b *BreakerState) Read(ctx context.Context, db tracker.Querier, statement, endpoint string) error {
	rows := pg.Rows(ctx, db, statement, endpoint)
	to := []any{&b.Open, &b.since, &b.Probes, &b.probe, &b.trusted, &b.vouched}
	_, err := pgx.ForEachRow(rows, to, func() error { return nil })
	return pg.Wrap(err, "read the breaker of endpoint %s", endpoint)
}

// newestEnded reads the index on endpoint and end backwards. It leaves out slices that ended for Tranche's own
// reasons: a lost node or stream, a split, a cancel. A permanently refused item was handled, even if it was the
// whole chunk. If every slot was answered and the slice has an error, every slot requested a retry.
//
// Flushes of collectors leave no rows. Each key whose last flush ended like in an outage is a place, by
// collector_key_failed, unless the service has since, or within $5 before, handled a flush of any collector or a
// slice: the time of a handled flush is only known with that precision.
const newestEnded = `
WITH slices AS MATERIALIZED (
    SELECT s.id, coalesce(s.parent, '00000000-0000-0000-0000-000000000000') AS parent, bit_count(s.mask)::int AS items,
           CASE WHEN s.error_code IS NULL OR bit_count(s.mask) = 1 AND NOT coalesce(s.error_retry, false) THEN 0
                WHEN coalesce(s.answered, 0) < bit_count(s.mask) THEN 1 ELSE 2 END AS how,
           coalesce(s.error_code, '') AS code, s.ended_at AS at
    FROM work_slice s
    WHERE s.endpoint = $1 AND s.ended_at > (SELECT greatest(tranche_now() - $2::interval, $3))
      AND (s.state = 'recorded' OR s.state = 'expired' AND s.error_code = 'deadline')
    ORDER BY s.ended_at DESC LIMIT $4)
SELECT id, parent, items, how, code FROM (
SELECT id, parent, items, how, code, at FROM slices
UNION ALL
(SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', f.failed_ops, 1, coalesce(f.failed_code, ''),
        f.failed_at
 FROM collector c
 CROSS JOIN LATERAL (
    SELECT k.failed_at, k.failed_ops, k.failed_code FROM collector_key k
    WHERE k.collector = c.id AND k.failed_at > (
        SELECT greatest(tranche_now() - $2::interval, $3, max(o.last_success_at) + $5::interval,
            (SELECT max(at) FROM slices WHERE how = 0) + $5::interval)
        FROM collector o WHERE o.endpoint = $1)
    ORDER BY k.failed_at DESC LIMIT $4) f
 WHERE c.endpoint = $1 AND c.state <> 'deleting'
 ORDER BY f.failed_at DESC LIMIT $4)) e
ORDER BY at DESC`

// recentlyEnded returns the last ended slices and flushes of an endpoint, newest first, before its items are judged.
// It leaves out those refused by an overloaded service: such a service is up.
func (b *BreakerState) recentlyEnded(ctx context.Context, db tracker.Querier, endpoint string) ([]endedSlice, error) {
	var since time.Time
	if b.since != nil {
		since = *b.since
	}
	rows := pg.Rows(ctx, db, newestEnded, endpoint, breakerWindow, since, breakerRead, GoodFlushNote)
	newest, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e endedSlice, err error) {
		err = row.Scan(&e.id, &e.parent, &e.items, &e.how, &e.code)
		return e, err
	})
	if err == nil {
		return slices.DeleteFunc(newest, func(e endedSlice) bool { return workqueue.Throttled(e.code) }), nil
	}
	return nil, fmt.Errorf("read what ended at endpoint %s: %w", endpoint, err)
}

// blameItems follows slices up through their parents. Their items are known to be to blame if
//   - a service singled them out in a reply with outcomes for the rest of their chunk, and has worked for others since
//     their last failure that counted;
//   - it is one item that failed alone, in an attempt that counted, and the endpoint later worked for others; or
//   - they are few, and the chunk that they were cut from works without them.
//
// An outage in the middle of a chunk singles out good items, too. So those singled out are few only as an eighth of a
// chunk, and the rest are to blame only for an error that is an answer.
//
// That items failed before is weaker: it does not blame them while the endpoint is down. It means a lone item that
// failed alone earlier in this generation, or whose newest outcome of an earlier generation is an error that was an
// answer. For a probe it also checks whether there was other work to probe with. Parents are found by ID, a success
// by the index on endpoint and end, pieces of a chunk by work_slice_block, other work of the step by
// work_block_ready and work_slice_live, earlier outcomes by key, one at a time.
const blameItems = `
WITH RECURSIVE up AS (
    SELECT s.id AS item, s.id, s.parent, s.failures, bit_count(s.mask) = 1 AS alone, false AS failed,
           NULL::timestamptz AS counted_at, false AS singled_out
    FROM work_slice s WHERE s.id = ANY ($1)
    UNION ALL
    SELECT u.item, p.id, p.parent, p.failures, u.alone AND bit_count(p.mask) = 1,
           p.error_code IS NOT NULL AND (p.state = 'recorded' OR p.error_code = 'deadline'),
           CASE WHEN u.failures > p.failures THEN p.ended_at END,
           u.failures > p.failures AND p.state = 'recorded' AND p.error_code IS NULL
    FROM up u JOIN work_slice p ON p.id = u.parent WHERE NOT u.singled_out
), history AS (
    SELECT item, min(counted_at) FILTER (WHERE alone) AS counted_at, max(counted_at) AS last_at,
           bool_or(singled_out) AS singled_out, count(*) FILTER (WHERE failed AND alone) AS lone
    FROM up GROUP BY item)
SELECT s.id, h.lone, h.singled_out,
    h.singled_out AND EXISTS (SELECT FROM work_slice ok WHERE ok.endpoint = s.endpoint AND ok.ended_at > h.last_at
        AND ok.created_at > h.last_at AND ok.state = 'recorded' AND ok.error_code IS NULL)
    OR EXISTS (SELECT FROM work_slice ok WHERE ok.endpoint = s.endpoint AND ok.ended_at > h.counted_at
        AND ok.state = 'recorded' AND ok.error_code IS NULL)
    OR coalesce((SELECT bool_or(t.state = 'recorded' AND t.error_code IS NULL)
            AND count(*) FILTER (WHERE bit_count(t.mask) = 1 AND t.error_code IS NOT NULL
                AND t.cause IN ('bisect', 'exhausted')) <= $2
            AND (NOT h.singled_out OR bit_count(s.mask) * 8 <= max(bit_count(t.mask)))
        FROM work_slice t
        WHERE bit_count(s.mask) <= $2 AND s.root <> s.id
          AND t.run_id = s.run_id AND t.step = s.step AND t.block = s.block AND t.root = s.root), false),
    h.counted_at IS NOT NULL,
    s.generation > 1 AND bit_count(s.mask) <= $2 AND (
        SELECT bool_and(coalesce((
            SELECT p.error_code <> ALL ($3) FROM work_result p
            WHERE p.run_id = s.run_id AND p.step = s.step AND p.ordinal = s.block * 8192 + g.bit
              AND p.generation < s.generation
            ORDER BY p.generation DESC LIMIT 1), false))
        FROM generate_series(0, 8191) g (bit) WHERE get_bit(s.mask, g.bit) = 1),
    s.cause = 'probe' AND (
        EXISTS (SELECT FROM work_block b WHERE b.run_id = s.run_id AND b.step = s.step AND b.has_ready)
        OR EXISTS (SELECT FROM work_slice o WHERE o.run_id = s.run_id AND o.step = s.step
            AND o.state IN ('scheduled', 'claimed', 'sent') AND bit_count(o.mask) > 1))
FROM history h JOIN work_slice s ON s.id = h.item`

// fewCulprits bounds the size of a piece, and the number of its chunk's items that failed alone, for them to count
// as culprits because the rest worked. More would look like an outage that began midway. It also bounds the items
// that count as failing again after an earlier generation.
const fewCulprits = 16

// Blames returns what is known of the items of slices.
func Blames(ctx context.Context, db tracker.Querier, ids []workqueue.SliceID) (map[workqueue.SliceID]Blame, error) {
	known := map[workqueue.SliceID]Blame{}
	if len(ids) == 0 {
		return known, nil
	}
	var id workqueue.SliceID
	var b Blame
	to := []any{&id, &b.Lone, &b.singled, &b.proven, &b.again, &b.rerun, &b.others}
	err := pg.Each(pg.Rows(ctx, db, blameItems, ids, fewCulprits, unansweredCodes()), to, func() { known[id] = b })
	return known, pg.Wrap(err, "read the history of %d slices", len(ids))
}

// consider judges an endpoint by what ended before, and by what is ending and has no row so far.
func (b *BreakerState) consider(ctx context.Context, db tracker.Querier, endpoint string, ending []endedSlice,
) (outage, map[workqueue.SliceID]Blame, error) {
	if b.vouched {
		return outage{}, nil, nil
	}
	newest := ending
	if !b.Open { // an open one is down regardless
		before, err := b.recentlyEnded(ctx, db, endpoint)
		if err != nil {
			return outage{}, nil, err
		}
		newest = slices.Concat(newest, before)
	}
	var failed []workqueue.SliceID
	for _, s := range newest {
		if s.how != endedWell {
			failed = append(failed, s.id)
		}
	}
	known, err := Blames(ctx, db, failed)
	if err != nil {
		return outage{}, nil, err
	}
	for i := range newest {
		b, code := known[newest[i].id], newest[i].code
		newest[i].itemsOwn = b.atFault(code) || (b.again || b.rerun) && answered(code)
	}
	o := judge(newest, b.trusted)
	o.down = o.down || b.Open
	return o, known, nil
}

// Failing is a slice that this transaction will end as a failure.
type Failing struct {
	Slice *plane.HeldSlice
	How   endedHow
	Why   workqueue.SlotError
}

// TellsOfAnOutage reports whether an outage may be the cause: not an overload, nor a permanent error of one item.
func (f *Failing) TellsOfAnOutage() bool {
	return !workqueue.Throttled(f.Why.Code) && (f.Why.Retry || f.Slice.Mask.Count() > 1)
}

// Outages returns which of the slices fail because their endpoint is down, so their items are not to blame. It reads
// without a lock what ended at their endpoints before. Call it only if something fails.
func Outages(ctx context.Context, tx pgx.Tx, all []Failing) (map[workqueue.SliceID]bool, error) {
	byEndpoint := map[string][]endedSlice{}
	for _, f := range all {
		byEndpoint[f.Slice.Endpoint] = append(byEndpoint[f.Slice.Endpoint], endedSlice{id: f.Slice.ID,
			parent: f.Slice.Parent, items: f.Slice.Mask.Count(), how: f.How, code: f.Why.Code})
	}
	spared := map[workqueue.SliceID]bool{}
	for endpoint, ending := range byEndpoint {
		var b BreakerState
		if err := b.Read(ctx, tx, readBreaker, endpoint); err != nil {
			return nil, err
		}
		o, known, err := b.consider(ctx, tx, endpoint, ending)
		if err != nil {
			return nil, err
		}
		for _, f := range all {
			if o.down && f.Slice.Endpoint == endpoint {
				spared[f.Slice.ID] = known[f.Slice.ID].spared(f.Slice.Cause, f.Why.Code, b.Probes)
			}
		}
	}
	return spared, nil
}

// GoodFlushNote is the precision of the time when a service last handled a flush, to save writes.
const GoodFlushNote = 500 * time.Millisecond
