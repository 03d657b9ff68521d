package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	// stepsToLock serializes claims of a step, so that its limits are exact over all nodes, and excludes cancels and
	// reruns, which take the same lock. A claim of one step waits; one of several skips locked ones.
	stepsToLock = `
SELECT st.run_id, st.step FROM unnest($1::uuid[], $2::smallint[]) AS u (run_id, step) CROSS JOIN LATERAL (
    SELECT run_id, step FROM run_step o WHERE o.run_id = u.run_id AND o.step = u.step FOR NO KEY UPDATE`
	lockStep      = stepsToLock + `) st`
	lockFreeSteps = stepsToLock + ` SKIP LOCKED) st`

	// pacesToLock serializes claims for an endpoint, for the limits over all runs. Always after the steps.
	pacesToLock = `
SELECT p.endpoint FROM (` + endpointsOfSteps + ` ORDER BY 1 OFFSET 0) n CROSS JOIN LATERAL (
    SELECT endpoint FROM endpoint_pace o WHERE o.endpoint = n.endpoint FOR NO KEY UPDATE`
	lockPace      = pacesToLock + `) p`
	lockFreePaces = pacesToLock + ` SKIP LOCKED) p`

	// loadSteps, like the following, is a statement after the locks, so it sees what they waited for.
	loadSteps = `
SELECT u.n, r.state = 'running' AND r.hold IS NULL AND (NOT st.barrier OR st.barrier_passed), r.generation, r.priority,
       r.params::text,
       st.name, st.kind, st.config::text, st.input_item, st.inputs, st.request_timeout,
       (SELECT count(*) FROM run_step o WHERE o.run_id = r.id),
       st.endpoint, st.chunk, st.chunk_auto, coalesce(st.chunk_bytes, 0), least(st.in_flight, st.in_flight_cap),
       st.in_flight_auto, st.share,
       (SELECT count(*) FROM work_slice s
        WHERE s.run_id = r.id AND s.step = st.step AND s.state IN ('claimed', 'sent')),
       coalesce(st.rate, 0), st.tokens, extract(epoch FROM t.now - st.tokens_at)::float8,
       o.stop, CASE WHEN o.stop IS NULL THEN 0 ELSE (
           SELECT coalesce(sum(bit_count(b.ready)), 0) FROM (
               SELECT ready FROM work_block
               WHERE run_id = r.id AND step = st.step AND has_ready ORDER BY block LIMIT 128) b) END,
       ` + plane.HasReady + ` OR ` + plane.HasDue + `, t.now,
       coalesce(c.canary, ''), coalesce(c.canary_share, 0), CASE WHEN c.canary IS NULL THEN 0 ELSE (
           SELECT count(*) FROM work_slice s WHERE s.endpoint = c.canary AND s.run_id = r.id AND s.step = st.step
             AND ` + plane.SliceInFlight + `) END,
       r.namespace, coalesce((SELECT n.max_in_flight FROM namespace n WHERE n.name = r.namespace), 0)
FROM unnest($1::uuid[], $2::smallint[]) WITH ORDINALITY AS u (run_id, step, n)
CROSS JOIN LATERAL (SELECT * FROM batchrun o WHERE o.id = u.run_id OFFSET 0) r
CROSS JOIN LATERAL (SELECT * FROM run_step o WHERE o.run_id = u.run_id AND o.step = u.step OFFSET 0) st
LEFT JOIN LATERAL (SELECT * FROM run_order o WHERE o.run_id = u.run_id OFFSET 0) o ON true
LEFT JOIN LATERAL (` + canaryOfStep + `) c ON true
CROSS JOIN (SELECT tranche_now() AS now) t`

	// canaryOfStep is the canary of a step st's endpoint, if requests may go to it.
	canaryOfStep = `
    SELECT o.canary, o.canary_share FROM endpoint_setting o
    WHERE o.endpoint = st.endpoint COLLATE "C" AND st.kind = 'endpoint'
      AND o.canary_share > 0 AND (o.canary_has_listeners OR o.canary_share = 100) OFFSET 0`

	// endpointsOfSteps is the endpoints of the steps $1, $2, and whether one of them has an automatic limit.
	endpointsOfSteps = `
    SELECT n.endpoint, bool_or(st.in_flight_auto) AS auto
    FROM unnest($1::uuid[], $2::smallint[]) AS u (run_id, step)
    CROSS JOIN LATERAL (SELECT * FROM run_step o WHERE o.run_id = u.run_id AND o.step = u.step OFFSET 0) st
    CROSS JOIN LATERAL (
        SELECT st.endpoint COLLATE "C" AS endpoint UNION ALL SELECT c.canary FROM (` + canaryOfStep + `) c) n
    GROUP BY n.endpoint`

	// loadPaces counts what is in flight, by work_slice_busy, only if a limit needs it. Slices claimed by an older
	// version name no endpoint.
	loadPaces = `
SELECT at.endpoint, p.endpoint IS NOT NULL, coalesce(p.in_flight, 0), coalesce(p.rate, 0), coalesce(p.tokens, 0),
       extract(epoch FROM t.now - p.tokens_at)::float8, coalesce(p.chunk, 0),
       CASE WHEN p.chunk_cap_until > t.now THEN p.chunk_cap ELSE 0 END,
       coalesce(p.breaker = 'open', false), coalesce(extract(epoch FROM p.probe_at - t.now), 0)::float8,
       coalesce((SELECT s.state IN ('claimed', 'sent') FROM work_slice s WHERE s.id = p.probe_slice), false),
       coalesce(p.probes, 0),
       coalesce(e.max_in_flight, 0), coalesce(e.rate, 0),
       CASE WHEN e.max_in_flight > 0 THEN
           ` + plane.BusyAt + `
           + (SELECT count(*) FROM work_slice s
              WHERE s.endpoint IS NULL AND ` + plane.SliceInFlight + ` AND at.endpoint = (
                  SELECT o.endpoint FROM run_step o WHERE o.run_id = s.run_id AND o.step = s.step))
       ELSE 0 END,
       CASE WHEN at.auto OR e.max_in_flight > 0 OR e.rate > 0 THEN
           (SELECT count(*) FROM work_slice s WHERE s.endpoint = at.endpoint AND ` + plane.SliceInFlight + ` AND (
               SELECT o.in_flight_auto FROM run_step o WHERE o.run_id = s.run_id AND o.step = s.step))
       ELSE 0 END,
       coalesce(e.request_rate, 0), coalesce(p.call_tokens, 0), extract(epoch FROM t.now - p.call_tokens_at)::float8,
       t.now
FROM (` + endpointsOfSteps + `) at
LEFT JOIN LATERAL (SELECT * FROM endpoint_pace o WHERE o.endpoint = at.endpoint OFFSET 0) p ON true
LEFT JOIN LATERAL (SELECT * FROM endpoint_setting o WHERE o.endpoint = at.endpoint OFFSET 0) e ON true
CROSS JOIN (SELECT tranche_now() AS now) t`

	// lockQuota serializes claims in a namespace with a quota, last of all locks; the count sees what it waited for. It is
	// not the namespace's row, which a start keeps until its commit.
	lockQuota = `
SELECT n FROM unnest($1::text[]) n, pg_advisory_xact_lock(hashtext('namespace'), hashtext(n))`
	lockFreeQuotas = `
SELECT n FROM unnest($1::text[]) n WHERE pg_try_advisory_xact_lock(hashtext('namespace'), hashtext(n))`
	busyQuotas = `
SELECT r.namespace, count(*) FROM work_slice s
CROSS JOIN LATERAL (SELECT o.namespace FROM batchrun o WHERE o.id = s.run_id OFFSET 0) r
WHERE s.endpoint IS NOT NULL AND ` + plane.SliceInFlight + ` AND r.namespace = ANY($1) GROUP BY 1`
)

// claimLoad is the state of a claim's step, read under the locks of the step and its endpoint.
type claimLoad struct {
	held       bool // the step and its endpoint are locked
	found      bool // the run has the step
	running    bool // the run is running and not held, and the step's barrier is passed
	generation workqueue.Generation
	priority   int
	params     []byte

	name    string
	kind    workqueue.Kind
	config  []byte
	item    bool             // a request carries the item's payload
	inputs  []workqueue.Step // and the parts of these
	timeout time.Duration
	steps   int   // of the run
	stop    *bool // of a run with lanes: whether a failure stops a lane
	lanes   int   // that have an item ready at the step, in the first blocks that have any

	endpoint   string
	chunk      int
	chunkAuto  bool
	chunkBytes int64
	inFlight   int
	auto       bool
	share      int // of what it shares, in addition to those of others
	live       int // slices of the step in flight
	step       pace.Bucket
	works      bool // something is ready or due
	now        time.Time

	canary      string  // gets a part of the endpoint's requests; "": none
	canaryShare float64 // that part, in percent
	canaryLive  int     // slices of the step in flight there

	namespace   string
	maxInFlight int        // its quota; 0: none
	quota       *quotaLoad // nil: none

	pace *paceLoad
}

// paceLoad is the state of an endpoint as read, then updated with what the claim got.
type paceLoad struct {
	held     bool
	paced    bool // it has a row
	limit    int  // found by nodes
	learned  float64
	tokens   float64 // of the rates
	age      *float64
	chunk    int
	chunkCap int // 0: none
	down     bool
	probeIn  float64 // seconds until the next probe; below 0: since it was due
	probing  bool    // the last one is in flight
	probes   int     // failed since the endpoint went down

	budget   int         // 0: none
	rate     float64     // 0: none
	busy     int         // slices and flushes in flight at the endpoint, if there is a budget
	busyAuto int         // those of automatic steps, if needed
	calls    pace.Bucket // of requests; rate 0: none
	now      time.Time

	rivals []contending // steps that could use a slot
}

// quotaLoad is what a namespace has in flight, updated with what the claim got.
type quotaLoad struct {
	max, busy int
	held      bool
}

// begin locks and reads the steps and their endpoints, and locks what can be claimed.
func (c *claims) begin(ctx context.Context) error {
	for made := false; ; made = true {
		if err := c.lock(ctx); err != nil || made || !c.lacksPace() {
			return err
		}
		for _, step := range c.steps {
			if _, err := c.tx.Exec(ctx, pace.MakeStepPace, step.Run, step.Step); err != nil {
				return fmt.Errorf("keep the endpoint's pace: %w", err)
			}
		}
	}
}

func (c *claims) lacksPace() bool {
	for _, pace := range c.paces {
		if !pace.paced {
			return true
		}
	}
	return false
}

// lock does that in one round trip.
func (c *claims) lock(ctx context.Context) error {
	runs, steps := make([]workqueue.RunID, len(c.steps)), make([]workqueue.Step, len(c.steps))
	dues, most := make([]int, len(c.steps)), make([]int, len(c.steps))
	for i, step := range c.steps {
		step.load = claimLoad{pace: &paceLoad{}}
		step.due, step.ready, step.ttl = nil, nil, step.TTL
		runs[i], steps[i], most[i] = step.Run, step.Step, step.MaxSlices
		dues[i] = max(step.MaxSlices, min(mergeRoom*step.MaxSlices, mergeMost))
	}
	ofSteps, ofPaces := lockFreeSteps, lockFreePaces
	if c.alone() {
		ofSteps, ofPaces = lockStep, lockPace
	}
	c.paces = map[string]*paceLoad{}
	live, locked, lockedPaces := false, map[StepRef]bool{}, map[string]bool{}
	batch := &pgx.Batch{}
	batch.Queue(ClaimTimeout)
	batch.Queue(plane.PlanOnce)
	batch.Queue(ofSteps, runs, steps).Query(func(rows pgx.Rows) error {
		var ref StepRef
		return pg.Each(rows, []any{&ref.Run, &ref.Step}, func() { locked[ref] = true })
	})
	batch.Queue(ofPaces, runs, steps).Query(func(rows pgx.Rows) error {
		var endpoint string
		return pg.Each(rows, []any{&endpoint}, func() { lockedPaces[endpoint] = true })
	})
	batch.Queue(ledger.SessionLive, c.session).Query(func(rows pgx.Rows) error {
		live = rows.Next()
		rows.Close()
		return rows.Err()
	})
	batch.Queue(loadSteps, runs, steps).Query(c.scanSteps)
	batch.Queue(loadPaces, runs, steps).Query(c.scanPaces)
	batch.Queue(rivals, runs, steps, rivalsCounted+1).Query(c.scanRivals)
	batch.Queue(dueSlices, runs, steps, dues).Query(c.scanDue)
	batch.Queue(readyBlocks, runs, steps, most, workqueue.DefaultAutoChunk).Query(c.scanReady)
	if err := c.tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if !live {
		return fmt.Errorf("session %s: %w", c.session, workqueue.ErrSessionLost)
	}
	for endpoint, pace := range c.paces {
		pace.held = lockedPaces[endpoint]
	}
	for _, step := range c.steps {
		step.load.place(c.paces)
		step.load.held = step.load.pace.held && locked[StepRef{step.Run, step.Step}]
	}
	return c.lockQuotas(ctx)
}

// lockQuotas locks and reads the quotas of requests in flight, in one more round trip if there are any.
func (c *claims) lockQuotas(ctx context.Context) error {
	quotas := map[string]*quotaLoad{}
	for _, step := range c.steps {
		if l := &step.load; l.maxInFlight > 0 {
			if quotas[l.namespace] == nil {
				quotas[l.namespace] = &quotaLoad{max: l.maxInFlight}
			}
			l.quota = quotas[l.namespace]
		}
	}
	if len(quotas) == 0 {
		return nil
	}
	names, lock := slices.Collect(maps.Keys(quotas)), lockFreeQuotas
	if c.alone() {
		lock = lockQuota
	}
	var name string
	var busy int
	batch := &pgx.Batch{}
	batch.Queue(lock, names).Query(func(rows pgx.Rows) error {
		return pg.Each(rows, []any{&name}, func() { quotas[name].held = true })
	})
	batch.Queue(busyQuotas, names).Query(func(rows pgx.Rows) error {
		return pg.Each(rows, []any{&name, &busy}, func() { quotas[name].busy = busy })
	})
	if err := c.tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("count what namespaces have in flight: %w", err)
	}
	for _, step := range c.steps {
		step.load.held = step.load.held && (step.load.quota == nil || step.load.quota.held)
	}
	return nil
}

// place finds the pace that applies. If all requests go to the canary, that is the endpoint.
func (l *claimLoad) place(paces map[string]*paceLoad) {
	if own := paces[l.endpoint]; own != nil {
		l.pace = own
	}
	if to := paces[l.canary]; to != nil && l.canaryShare == pace.WholeShare {
		l.endpoint, l.pace = l.canary, to
	}
}

func (c *claims) scanSteps(rows pgx.Rows) error {
	for rows.Next() {
		var n int
		var l claimLoad
		var age *float64
		err := rows.Scan(&n, &l.running, &l.generation, &l.priority, &l.params,
			&l.name, &l.kind, &l.config, &l.item, &l.inputs, &l.timeout, &l.steps,
			&l.endpoint, &l.chunk, &l.chunkAuto, &l.chunkBytes, &l.inFlight, &l.auto, &l.share,
			&l.live, &l.step.Rate, &l.step.Tokens, &age, &l.stop, &l.lanes, &l.works, &l.now,
			&l.canary, &l.canaryShare, &l.canaryLive, &l.namespace, &l.maxInFlight)
		if err != nil {
			return err
		}
		l.found, l.pace = true, &paceLoad{}
		l.step.Fill(age)
		step := c.steps[n-1]
		step.load = l
		if l.kind != workqueue.KindEndpoint {
			step.ttl = step.TTL + l.timeout
		}
	}
	return rows.Err()
}

func (c *claims) scanPaces(rows pgx.Rows) error {
	for rows.Next() {
		p := &paceLoad{}
		var endpoint string
		var callsAge *float64
		err := rows.Scan(&endpoint, &p.paced, &p.limit, &p.learned, &p.tokens, &p.age, &p.chunk, &p.chunkCap,
			&p.down, &p.probeIn, &p.probing, &p.probes, &p.budget, &p.rate, &p.busy, &p.busyAuto,
			&p.calls.Rate, &p.calls.Tokens, &callsAge, &p.now)
		if err != nil {
			return err
		}
		p.calls.FillCalls(callsAge)
		c.paces[endpoint] = p
	}
	return rows.Err()
}

// took counts what a step got, for the claim's later steps.
func (p *paceLoad) took(c *claim, taken int) {
	l := &c.load
	p.busy += taken
	if l.auto {
		p.busyAuto += taken
	}
	if l.works = c.bound != BoundNone; !l.works || l.live+taken >= l.inFlight || !l.step.Spare() {
		own := StepRef{c.Run, c.Step}
		l.pace.rivals = slices.DeleteFunc(l.pace.rivals, func(r contending) bool { return r.StepRef == own })
	}
}
