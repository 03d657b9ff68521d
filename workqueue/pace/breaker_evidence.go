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

// BreakerState is the part of an endpoint_pace row that breakers are about.
type BreakerState struct {
	Open    bool
	since   *time.Time         // of its last change; nil: it was never open
	Probes  int                // that failed since it opened
	probe   *workqueue.SliceID // the last one, unless it has been judged
	trusted bool               // it answered a probe a short while ago
	vouched bool               // an operator said a short while ago that there is no outage
}

// readBreaker takes no lock: whoever settles slices must not wait for claims. No row means closed.
const readBreaker = `
SELECT breaker = 'open', breaker_since, probes, probe_slice, coalesce(breaker_suppressed_until > tranche_now(), false),
       coalesce(breaker = 'closed' AND breaker_reason <> '' AND breaker_suppressed_until > tranche_now(), false)
FROM endpoint_pace WHERE endpoint = $1`

func (b *BreakerState) Read(ctx context.Context, db tracker.Querier, statement, endpoint string) error {
	rows := pg.Rows(ctx, db, statement, endpoint)
	to := []any{&b.Open, &b.since, &b.Probes, &b.probe, &b.trusted, &b.vouched}
	_, err := pgx.ForEachRow(rows, to, func() error { return nil })
	if err != nil {
		return fmt.Errorf("read the breaker of endpoint %s: %w", endpoint, err)
	}
	return nil
}

// newestEnded reads the index on endpoint and end backwards. Slices that ended for a reason of ours are left out: a
// lost node or stream, a split, a cancel. An item that the service refused permanently was handled, although its chunk
// was it alone. Every slot answered and yet an error of the slice: every slot asked to be retried.
//
// Flushes of collectors have no rows that stay. Each key whose last flush ended as in an outage is a place, by
// collector_key_failed, unless the service has handled a flush of any collector, or with a slice, since then or
// within $5 before: to that, it is known when it handled a flush.
const newestEnded = `
WITH slices AS MATERIALIZED (
    SELECT s.id, coalesce(s.parent, '00000000-0000-0000-0000-000000000000') AS parent, bit_count(s.mask)::int AS items,
           CASE WHEN s.error_code IS NULL OR bit_count(s.mask) = 1 AND NOT coalesce(s.error_retry, false) THEN 0
                WHEN coalesce(s.answered, 0) < bit_count(s.mask) THEN 1 ELSE 2 END AS how,
           coalesce(s.error_code, '') AS code, coalesce(s.error_message, '') AS message, s.ended_at AS at
    FROM work_slice s
    WHERE s.endpoint = $1 AND s.ended_at > (SELECT greatest(tranche_now() - $2::interval, $3))
      AND (s.state = 'recorded' OR s.state = 'expired' AND s.error_code = 'deadline')
    ORDER BY s.ended_at DESC LIMIT $4)
SELECT id, parent, items, how, code, message FROM (
SELECT id, parent, items, how, code, message, at FROM slices
UNION ALL
(SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', f.failed_ops, 1, coalesce(f.failed_code, ''),
        coalesce(f.failed_message, ''), f.failed_at
 FROM collector c
 CROSS JOIN LATERAL (
    SELECT k.failed_at, k.failed_ops, k.failed_code, k.failed_message FROM collector_key k
    WHERE k.collector = c.id AND k.failed_at > (
        SELECT greatest(tranche_now() - $2::interval, $3, max(o.last_success_at) + $5::interval,
            (SELECT max(at) FROM slices WHERE how = 0) + $5::interval)
        FROM collector o WHERE o.endpoint = $1)
    ORDER BY k.failed_at DESC LIMIT $4) f
 WHERE c.endpoint = $1 AND c.state <> 'deleting'
 ORDER BY f.failed_at DESC LIMIT $4)) e
ORDER BY at DESC`

// recentlyEnded returns the slices and flushes of an endpoint that ended last, the newest first, without a verdict on
// their items. Of those that it refused because it had too much to do it says nothing: such a service is up.
func (b *BreakerState) recentlyEnded(ctx context.Context, db tracker.Querier, endpoint string) ([]endedSlice, error) {
	var since time.Time
	if b.since != nil {
		since = *b.since
	}
	rows := pg.Rows(ctx, db, newestEnded, endpoint, breakerWindow, since, breakerRead, GoodFlushNote)
	newest, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e endedSlice, err error) {
		err = row.Scan(&e.id, &e.parent, &e.items, &e.how, &e.code, &e.message)
		return e, err
	})
	if err == nil {
		return slices.DeleteFunc(newest, func(e endedSlice) bool { return workqueue.Throttled(e.code) }), nil
	}
	return nil, fmt.Errorf("read what ended at endpoint %s: %w", endpoint, err)
}

// blameItems goes up from slices through what came before them. Their items are known to be to blame when
//   - a service singled them out in a reply that brought the others of their chunk an outcome; or
//   - it is one item, which failed alone, as an attempt that counted, and the endpoint worked for others after that; or
//   - they are few, and the chunk that they were cut out of works without them.
//
// Whether items have failed before is less: it is no reason to blame them while the endpoint is down. An item has when
// it stands alone and did so before in this generation, or when its newest outcome of an earlier generation is an error
// that was an answer. Of a probe it is asked as well whether there was anything else to probe with. Parents are found
// by their ids, a success by the index on endpoint and end, pieces of a chunk by work_slice_block, other work of the
// step by work_block_ready and work_slice_live, earlier outcomes by their key, one by one.
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
    SELECT item, min(counted_at) FILTER (WHERE alone) AS counted_at, bool_or(singled_out) AS singled_out,
           count(*) FILTER (WHERE failed AND alone) AS lone
    FROM up GROUP BY item)
SELECT s.id, h.lone,
    h.singled_out
    OR EXISTS (SELECT FROM work_slice ok WHERE ok.endpoint = s.endpoint AND ok.ended_at > h.counted_at
        AND ok.state = 'recorded' AND ok.error_code IS NULL)
    OR coalesce((SELECT bool_or(t.state = 'recorded' AND t.error_code IS NULL)
            AND count(*) FILTER (WHERE bit_count(t.mask) = 1 AND t.error_code IS NOT NULL
                AND t.cause IN ('bisect', 'exhausted')) <= $2
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

// fewCulprits is how small a piece of a chunk must be, and up to how many items of the chunk may have failed alone, for
// them to be taken for culprits because the rest worked. More look like an outage that began in the middle of it. As
// small must be what is taken for items that fail again, as they did in an earlier generation.
const fewCulprits = 16

// Blames returns what is known of the items of slices.
func Blames(ctx context.Context, db tracker.Querier, ids []workqueue.SliceID) (map[workqueue.SliceID]Blame, error) {
	known := map[workqueue.SliceID]Blame{}
	if len(ids) == 0 {
		return known, nil
	}
	var id workqueue.SliceID
	var b Blame
	to := []any{&id, &b.Lone, &b.proven, &b.again, &b.rerun, &b.others}
	err := pg.Each(pg.Rows(ctx, db, blameItems, ids, fewCulprits, unansweredCodes()), to, func() { known[id] = b })
	if err != nil {
		return nil, fmt.Errorf("read the history of %d slices: %w", len(ids), err)
	}
	return known, nil
}

// consider judges an endpoint by what ended before and by what is ending, which has no row of its own yet.
func (b *BreakerState) consider(ctx context.Context, db tracker.Querier, endpoint string, ending []endedSlice,
) (outage, map[workqueue.SliceID]Blame, error) {
	if b.vouched {
		return outage{}, nil, nil
	}
	newest := ending
	if !b.Open { // an open one is down whatever ended
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
		b := known[newest[i].id]
		newest[i].itemsOwn = b.proven || (b.again || b.rerun) && answered(newest[i].code)
	}
	o := judge(newest, b.trusted)
	o.down = o.down || b.Open
	return o, known, nil
}

// Failing is a slice that this transaction is about to end as a failure.
type Failing struct {
	Slice *plane.HeldSlice
	How   endedHow
	Why   workqueue.SlotError
}

// TellsOfAnOutage reports whether the failure may come of one. A service that refuses a single item permanently has
// dealt with it, and one that says it has too much to do is up.
func (f *Failing) TellsOfAnOutage() bool {
	return !workqueue.Throttled(f.Why.Code) && (f.Why.Retry || f.Slice.Mask.Count() > 1)
}

// Outages says which of the slices fail because their endpoint is down: their items are not to blame. It reads, without
// a lock, what ended at their endpoints before; a transaction in which nothing fails does not call it.
func Outages(ctx context.Context, tx pgx.Tx, all []Failing) (map[workqueue.SliceID]bool, error) {
	byEndpoint := map[string][]endedSlice{}
	for _, f := range all {
		byEndpoint[f.Slice.Endpoint] = append(byEndpoint[f.Slice.Endpoint], endedSlice{id: f.Slice.ID,
			parent: f.Slice.Parent, items: f.Slice.Mask.Count(), how: f.How, code: f.Why.Code, message: f.Why.Message})
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
				spared[f.Slice.ID] = known[f.Slice.ID].spared(f.Slice.Cause, b.Probes)
			}
		}
	}
	return spared, nil
}

// GoodFlushNote is how exactly it is kept when the service last handled a flush: the row of a collector is not to be
// written by every one.
const GoodFlushNote = 500 * time.Millisecond
