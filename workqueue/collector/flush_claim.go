package collector

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// FlushRequest is a node's request for keys to flush.
type FlushRequest struct {
	Session   workqueue.SessionID
	Collector int32
	Max       int           // most keys
	TTL       time.Duration // time that the node may take beyond the flush's timeout; 0: DefaultClaimTTL
}

// ClaimedFlushes is the result of a claim.
type ClaimedFlushes struct {
	Flushes []KeyFlush
	Spec    CollectorSpec
	Name    string
	Run     uuid.UUID
	Strict  bool
	Probe   bool          // the endpoint is down, and this one flush tests whether it is up
	Health  int           // consecutive failed flushes of the collector
	Wait    time.Duration // when to claim again; 0: only after an event, not after a time
}

const restAfter = 3

const (
	// lockFlushing serializes a collector's claims, and lockFlushPace an endpoint's, for limits exact over all nodes.
	lockFlushing  = `SELECT 1 FROM collector WHERE id = $1 AND state = 'active' FOR NO KEY UPDATE`
	lockFlushPace = `
SELECT 1 FROM endpoint_pace
WHERE endpoint = (SELECT endpoint FROM collector WHERE id = $1) FOR NO KEY UPDATE`

	// loadFlushing is a statement after the locks, so it sees what they waited for. Requests in flight are counted
	// only if there is a budget. A resting collector continues if its endpoint's breaker has closed since.
	loadFlushing = `
SELECT c.name, c.run_id, c.spec, c.endpoint, c.strict, c.key_version, c.drained_key_version, c.max_size,
       c.in_flight, c.timeout,
       (SELECT count(*) FROM collector_key k WHERE k.collector = c.id AND k.flush IS NOT NULL),
       coalesce(c.rate, 0), c.tokens, extract(epoch FROM t.now - c.tokens_at)::float8,
       c.failures, CASE WHEN p.breaker = 'closed' AND p.breaker_since > c.failed_at THEN 0
           ELSE coalesce(greatest(extract(epoch FROM c.backoff_until - t.now), 0), 0) END::float8,
       coalesce(p.breaker = 'open', false), coalesce(greatest(extract(epoch FROM p.probe_at - t.now), 0), 0)::float8,
       EXISTS (SELECT 1 FROM work_slice s WHERE s.id = p.probe_slice AND s.state IN ('claimed', 'sent')),
       coalesce(p.probes, 0), coalesce(p.tokens, 0), extract(epoch FROM t.now - p.tokens_at)::float8,
       coalesce(p.call_tokens, 0), extract(epoch FROM t.now - p.call_tokens_at)::float8,
       coalesce(e.max_in_flight, 0), coalesce(e.rate, 0), coalesce(e.request_rate, 0),
       CASE WHEN e.max_in_flight > 0 THEN
           ` + plane.BusyAt + `
       ELSE 0 END,
       t.now
FROM collector c CROSS JOIN (SELECT tranche_now() AS now) t CROSS JOIN LATERAL (SELECT c.endpoint) at
LEFT JOIN endpoint_pace p ON p.endpoint = c.endpoint LEFT JOIN endpoint_setting e ON e.endpoint = c.endpoint
WHERE c.id = $1 AND c.state = 'active'`

	// olderKeys finds the lowest key version with waiting operations, by the primary key: empty keys are deleted.
	olderKeys = `
SELECT k.key_version, c.folds[k.key_version] FROM collector_key k JOIN collector c ON c.id = k.collector
WHERE k.collector = $1 AND k.key_version < $2 AND (k.untried > 0 OR k.retrying > 0) ORDER BY k.key_version LIMIT 1`
	settleKeyVersion = `UPDATE collector SET drained_key_version = $2 WHERE id = $1`

	// foreignFlush checks for flushes of another key version, by collector_key_flushing.
	foreignFlush = `
SELECT EXISTS (SELECT FROM collector_key WHERE collector = $1 AND flush IS NOT NULL AND key_version <> $2)`

	// takeKeys takes due keys, the most urgent first, then the oldest, by collector_key_due. It skips keys locked by
	// adds or recordings. $9: only keys whose flushes do not fail.
	takeKeys = `
WITH due AS MATERIALIZED (
    SELECT f.key FROM generate_series($8::int, 0, -1) AS l (priority)
    CROSS JOIN LATERAL (
        SELECT k.key FROM collector_key k
        WHERE k.collector = $1 AND k.key_version = $2 AND k.priority = l.priority AND k.flush IS NULL AND k.due_at <= $3
          AND (NOT $9 OR k.failures = 0)
        ORDER BY k.due_at LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED) f
    LIMIT $4)
UPDATE collector_key k
SET flush = gen_random_uuid(), session_id = $5, flushed_at = $3, flush_until = $3::timestamptz + $6::interval
FROM due WHERE k.collector = $1 AND k.key_version = $2 AND k.key = due.key AND k.flush IS NULL
RETURNING k.key, k.flush, least($7::int, coalesce(k.size_limit, $7)), k.untried + k.retrying, k.failures,
          coalesce(k.size_limit, 0)`

	drainCalls     = `UPDATE collector SET tokens = $2, tokens_at = $3 WHERE id = $1`
	drainPaceItems = `UPDATE endpoint_pace SET tokens = $2, tokens_at = $3 WHERE endpoint = $1`

	// probeByFlush postpones the next probe for all senders.
	probeByFlush = `
UPDATE endpoint_pace SET probe_at = tranche_now() + $2::interval WHERE endpoint = $1 AND breaker = 'open'`
)

// ClaimFlushes claims due keys of a collector for a session: no other node flushes them until the flush is recorded
// or the node's claim ends. Limits are exact over all nodes, as with [dispatch.Store.Claim]: the collector's
// concurrent flushes and request rate, and the endpoint's budget and rates of requests and items. While an endpoint
// is down or a collector's flushes fail, it claims one key at a time, when a retry is due. A probe of a down
// endpoint carries one operation, as all probes do.
//
// The error wraps ErrSessionLost if the session ended, and ErrBusy if the collector or its endpoint is locked
// for longer than a claim takes.
func (s Store) ClaimFlushes(ctx context.Context, req FlushRequest) (ClaimedFlushes, error) {
	if req.TTL <= 0 {
		req.TTL = dispatch.DefaultClaimTTL
	}
	var out ClaimedFlushes
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		c := &flushClaim{FlushRequest: req, tx: tx}
		out, err = c.run(ctx)
		return err
	})
	if pg.IsLockTimeout(err) {
		err = workqueue.ErrBusy
	}
	return out, pg.Wrap(err, "claim keys of collector %d", req.Collector)
}

type flushClaim struct {
	FlushRequest
	tx   pgx.Tx
	load flushLoad
	free int
	wait time.Duration
}

type flushLoad struct {
	found               bool
	name                string
	run                 uuid.UUID
	spec                CollectorSpec
	endpoint            string
	strict              bool
	keyVersion, drained int
	maxSize, inFlight   int
	timeout             time.Duration
	live                int
	calls               pace.Bucket // of the collector
	failures            int
	restIn              float64 // seconds
	down                bool
	probeIn             float64
	probing             bool
	probes              int
	budget, busy        int
	items               pace.Bucket // of the endpoint
	paceCalls           pace.Bucket // of the endpoint
	now                 time.Time
}

func (c *flushClaim) run(ctx context.Context) (ClaimedFlushes, error) {
	if err := c.begin(ctx); err != nil || !c.load.found {
		return ClaimedFlushes{}, err
	}
	l := &c.load
	out := ClaimedFlushes{Spec: l.spec, Name: l.name, Run: l.run, Strict: l.strict, Health: l.failures}
	c.allow()
	if c.free <= 0 {
		out.Wait = c.wait
		return out, nil
	}
	keyVersion, alone, err := c.lowest(ctx)
	if err != nil || !alone {
		return out, err
	}
	out.Spec.Fold = l.spec.Fold
	// One at a time, a key that has not failed goes first: others would wait for each key that always fails.
	if c.single() {
		out.Flushes, err = c.take(ctx, keyVersion, true)
	}
	if err == nil && len(out.Flushes) == 0 {
		out.Flushes, err = c.take(ctx, keyVersion, false)
	}
	if err != nil || len(out.Flushes) == 0 {
		return out, err
	}
	out.Probe = l.down
	if len(out.Flushes) == c.free {
		out.Wait = c.wait
	}
	return out, c.settle(ctx)
}

func (c *flushClaim) begin(ctx context.Context) error {
	live, l := false, &c.load
	batch := &pgx.Batch{}
	batch.Queue(dispatch.ClaimTimeout)
	batch.Queue(lockFlushing, c.Collector)
	batch.Queue(lockFlushPace, c.Collector)
	batch.Queue(ledger.SessionLive, c.Session).Query(func(rows pgx.Rows) error {
		live = rows.Next()
		rows.Close()
		return rows.Err()
	})
	batch.Queue(loadFlushing, c.Collector).QueryRow(func(row pgx.Row) error {
		err := l.scan(row)
		l.found = err == nil
		return pg.NoRow(err, nil)
	})
	if err := c.tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if !live {
		return fmt.Errorf("session %s: %w", c.Session, workqueue.ErrSessionLost)
	}
	return nil
}

func (l *flushLoad) scan(row pgx.Row) error {
	var callsAge, itemsAge, paceAge *float64
	err := row.Scan(&l.name, &l.run, &l.spec, &l.endpoint, &l.strict, &l.keyVersion, &l.drained, &l.maxSize, &l.inFlight,
		&l.timeout, &l.live, &l.calls.Rate, &l.calls.Tokens, &callsAge, &l.failures, &l.restIn,
		&l.down, &l.probeIn, &l.probing, &l.probes, &l.items.Tokens, &itemsAge, &l.paceCalls.Tokens, &paceAge,
		&l.budget, &l.items.Rate, &l.paceCalls.Rate, &l.busy, &l.now)
	if err != nil {
		return err
	}
	l.calls.FillCalls(callsAge)
	l.paceCalls.FillCalls(paceAge)
	l.items.Fill(itemsAge)
	return nil
}

func (c *flushClaim) allow() {
	l := &c.load
	c.free = min(c.Max, l.inFlight-l.live)
	if l.budget > 0 {
		c.free = min(c.free, l.budget-l.busy)
	}
	if c.single() {
		c.free = min(c.free, 1-l.live)
	}
	switch {
	case c.free <= 0:
		return // a flush must end first
	case l.restIn > 0:
		c.shut(time.Duration(l.restIn * float64(time.Second)))
	case l.down && l.probing:
		c.shut(pace.FirstProbe)
	case l.down && l.probeIn > 0:
		c.shut(time.Duration(l.probeIn * float64(time.Second)))
	case l.items.Rate > 0 && !l.items.Open():
		c.shut(l.items.Wait())
	}
	for _, b := range []*pace.Bucket{&l.calls, &l.paceCalls} {
		n, wait := b.CallsFree()
		if n == 0 {
			c.shut(wait)
		}
		c.free = min(c.free, n)
	}
}

// single reports whether flushes go one at a time because none has succeeded lately.
func (c *flushClaim) single() bool { return c.load.failures >= restAfter || c.load.down }

// shut claims nothing and sets when to try again.
func (c *flushClaim) shut(wait time.Duration) { c.free, c.wait = 0, max(c.wait, wait) }

// lowest returns the key version to flush: the oldest with waiting operations. alone is false while keys of another
// version are being flushed, so that no value is in work under two keys.
func (c *flushClaim) lowest(ctx context.Context) (keyVersion int, alone bool, err error) {
	l := &c.load
	if l.drained == l.keyVersion {
		return l.keyVersion, true, nil
	}
	keyVersion, fold := l.keyVersion, l.spec.Fold
	err = c.tx.QueryRow(ctx, olderKeys, c.Collector, l.keyVersion).Scan(&keyVersion, &fold)
	none := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !none {
		return 0, false, fmt.Errorf("find older keys: %w", err)
	}
	var foreign bool
	if err := c.tx.QueryRow(ctx, foreignFlush, c.Collector, keyVersion).Scan(&foreign); err != nil {
		return 0, false, fmt.Errorf("find flushes of other keys: %w", err)
	}
	if none && !foreign { // none also means that all was dropped while in flight
		if _, err := c.tx.Exec(ctx, settleKeyVersion, c.Collector, l.keyVersion); err != nil {
			return 0, false, fmt.Errorf("note that older keys are empty: %w", err)
		}
	}
	if l.spec.Fold != "" { // else it may not be strict, as folding requires
		l.spec.Fold = fold
	}
	return keyVersion, !foreign, nil
}

// take claims keys until nothing more is free or due. With a rate, a flush has at most half a second's worth, as a
// chunk, or min_size, and a claim takes no key after the last token.
func (c *flushClaim) take(ctx context.Context, keyVersion int, unfailed bool) (all []KeyFlush, err error) {
	l := &c.load
	most := l.maxSize
	if l.items.Rate > 0 {
		most = min(most, max(l.spec.MinSize, int(l.items.Rate/2), 1))
	}
	if l.down {
		most = 1
	}
	for {
		n := c.free - len(all)
		if l.items.Rate > 0 {
			n = min(n, int(math.Ceil(l.items.Tokens/float64(most))))
		}
		if n <= 0 {
			return all, nil
		}
		taken, err := c.takeKeys(ctx, keyVersion, unfailed, n, most)
		all = append(all, taken...)
		if err != nil || len(taken) < n {
			return all, err
		}
	}
}

func (c *flushClaim) takeKeys(ctx context.Context, keyVersion int, unfailed bool, n, most int) ([]KeyFlush, error) {
	l := &c.load
	rows := pg.Rows(ctx, c.tx, takeKeys, c.Collector, keyVersion, l.now, n, c.Session, l.timeout+c.TTL,
		most, MaxOpPriority, unfailed)
	taken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (KeyFlush, error) {
		f := KeyFlush{Collector: c.Collector, KeyVersion: keyVersion, Claimed: l.now}
		waiting := 0
		err := row.Scan(&f.Key, &f.ID, &f.Limit, &waiting, &f.failures, &f.shrunk)
		l.items.Tokens -= float64(min(f.Limit, waiting))
		l.calls.Tokens--
		l.paceCalls.Tokens--
		return f, err
	})
	return taken, pg.Wrap(err, "take keys")
}

// settle saves the buckets and postpones the next probe.
func (c *flushClaim) settle(ctx context.Context) error {
	l, batch := &c.load, &pgx.Batch{}
	if l.calls.Rate > 0 {
		batch.Queue(drainCalls, c.Collector, l.calls.Tokens, l.now)
	}
	if l.items.Rate > 0 {
		batch.Queue(drainPaceItems, l.endpoint, l.items.Tokens, l.now)
	}
	if l.paceCalls.Rate > 0 {
		batch.Queue(pace.DrainPaceCalls, l.endpoint, l.paceCalls.Tokens, l.now)
	}
	if l.down {
		batch.Queue(probeByFlush, l.endpoint, pace.ProbePause(l.probes+1))
	}
	if batch.Len() == 0 {
		return nil
	}
	err := c.tx.SendBatch(ctx, batch).Close()
	return pg.Wrap(err, "note what was taken")
}
