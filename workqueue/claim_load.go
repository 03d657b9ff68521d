package workqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lockStep makes claims of one step take turns, so that its limits are exact over all nodes. It also shuts out a
	// cancel and a re-run, which take the same lock.
	lockStep = `
SELECT 1 FROM run_step WHERE run_id = $1 AND step = $2 FOR NO KEY UPDATE`

	// lockPace makes claims for one endpoint take turns, for the limits over all runs. Always after the step.
	lockPace = `
SELECT 1 FROM endpoint_pace
WHERE endpoint = (SELECT endpoint COLLATE "C" FROM run_step WHERE run_id = $1 AND step = $2) FOR NO KEY UPDATE`

	// loadStep is a statement of its own after the locks, so that it sees what they waited for. What is out at the
	// endpoint is counted only where a limit asks for it, in work_slice_busy; slices that an older node claimed name no
	// endpoint.
	loadStep = `
SELECT r.state = 'running' AND r.hold IS NULL AND (NOT st.barrier OR st.barrier_passed), r.generation, r.priority,
       CASE WHEN $3 THEN nullif(r.params, '{}')::text END,
       st.name, st.kind, st.config::text, st.input_item, st.inputs, st.slice_timeout,
       (SELECT count(*) FROM run_step o WHERE o.run_id = r.id),
       st.endpoint, st.chunk, st.chunk_auto, coalesce(st.chunk_bytes, 0), st.in_flight, st.in_flight_auto,
       (SELECT count(*) FROM work_slice s
        WHERE s.run_id = r.id AND s.step = st.step AND s.state IN ('claimed', 'sent')),
       coalesce(st.rate, 0), st.tokens, extract(epoch FROM t.now - st.tokens_at)::float8,
       p.endpoint IS NOT NULL, coalesce(p.in_flight, 0), coalesce(p.rate, 0), coalesce(p.tokens, 0),
       extract(epoch FROM t.now - p.tokens_at)::float8, coalesce(p.chunk, 0),
       CASE WHEN p.chunk_cap_until > t.now THEN p.chunk_cap ELSE 0 END,
       coalesce(p.breaker = 'open', false), coalesce(greatest(extract(epoch FROM p.probe_at - t.now), 0), 0)::float8,
       EXISTS (SELECT 1 FROM work_slice s WHERE s.id = p.probe_slice AND s.state IN ('claimed', 'sent')),
       coalesce(p.probes, 0),
       coalesce(e.max_in_flight, 0), coalesce(e.rate, 0),
       CASE WHEN e.max_in_flight > 0 THEN
           (SELECT count(*) FROM work_slice s
            WHERE s.endpoint = st.endpoint COLLATE "C" AND s.state IN ('claimed', 'sent'))
           + (SELECT count(*) FROM work_slice s JOIN run_step o USING (run_id, step)
              WHERE s.endpoint IS NULL AND s.state IN ('claimed', 'sent') AND o.endpoint = st.endpoint)
           + (SELECT count(*) FROM collector_key k JOIN collector o ON o.id = k.collector
              WHERE o.endpoint = st.endpoint COLLATE "C" AND k.flush IS NOT NULL)
       ELSE 0 END,
       CASE WHEN st.in_flight_auto THEN
           (SELECT count(*) FROM work_slice s JOIN run_step o USING (run_id, step)
            WHERE s.endpoint = st.endpoint COLLATE "C" AND s.state IN ('claimed', 'sent') AND o.in_flight_auto)
       ELSE 0 END,
       (SELECT o.stop FROM run_order o WHERE o.run_id = r.id),
       coalesce(e.call_rate, 0), coalesce(p.call_tokens, 0), extract(epoch FROM t.now - p.call_tokens_at)::float8,
       t.now
FROM batchrun r JOIN run_step st ON st.run_id = r.id
LEFT JOIN endpoint_pace p ON p.endpoint = st.endpoint COLLATE "C"
LEFT JOIN endpoint_setting e ON e.endpoint = st.endpoint COLLATE "C"
CROSS JOIN (SELECT clock_timestamp() AS now) t
WHERE r.id = $1 AND st.step = $2`
)

// claimLoad is what the step of a claim and its endpoint are like, read under the locks of both.
type claimLoad struct {
	found      bool // the run has the step
	running    bool // and is neither over nor held, and the step waits for nothing that all of it has to have
	generation Generation
	priority   int
	params     []byte

	name    string
	kind    Kind
	config  []byte
	item    bool   // a request carries the item's payload
	inputs  []Step // and the parts of these
	timeout time.Duration
	steps   int   // that the run has
	stop    *bool // of a run whose items stand in lines: at a failure

	endpoint   string
	chunk      int
	chunkAuto  bool
	chunkBytes int64
	inFlight   int
	auto       bool
	live       int // slices of the step that are out
	step       bucket

	paced     bool // the endpoint has a row
	paceLimit int  // what nodes found to be good for it
	paceRate  float64
	tokens    float64
	paceChunk int
	chunkCap  int // 0: none
	down      bool
	probeIn   float64 // seconds until the next probe
	probing   bool    // the last one has not come back
	probes    int     // that failed since the endpoint is down
	paceAge   *float64

	budget   int     // 0: none
	rate     float64 // 0: none
	busy     int     // slices and flushes out at the endpoint, when there is a budget
	busyAuto int     // those of automatic steps, for one of them
	calls    bucket  // of calls; rate 0: none

	now time.Time
}

// begin locks the step and its endpoint and reads what they are like.
func (c *claim) begin(ctx context.Context) error {
	for made := false; ; made = true {
		if err := c.lock(ctx); err != nil || !c.load.found || c.load.paced || made {
			return err
		}
		if _, err := c.tx.Exec(ctx, makeStepPace, c.Run, c.Step); err != nil {
			return fmt.Errorf("keep the endpoint's pace: %w", err)
		}
	}
}

func (c *claim) lock(ctx context.Context) error {
	live := false
	c.load, c.ttl = claimLoad{}, c.TTL
	l := &c.load
	batch := &pgx.Batch{}
	batch.Queue(claimPatience)
	batch.Queue(lockStep, c.Run, c.Step)
	batch.Queue(lockPace, c.Run, c.Step)
	batch.Queue(sessionLive, c.Session).Query(func(rows pgx.Rows) error {
		live = rows.Next()
		rows.Close()
		return rows.Err()
	})
	batch.Queue(loadStep, c.Run, c.Step, c.Params).QueryRow(func(row pgx.Row) error {
		var stepAge, callsAge *float64
		err := row.Scan(&l.running, &l.generation, &l.priority, &l.params,
			&l.name, &l.kind, &l.config, &l.item, &l.inputs, &l.timeout, &l.steps,
			&l.endpoint, &l.chunk, &l.chunkAuto, &l.chunkBytes, &l.inFlight, &l.auto,
			&l.live, &l.step.rate, &l.step.tokens, &stepAge,
			&l.paced, &l.paceLimit, &l.paceRate, &l.tokens, &l.paceAge, &l.paceChunk, &l.chunkCap,
			&l.down, &l.probeIn, &l.probing, &l.probes, &l.budget, &l.rate, &l.busy, &l.busyAuto, &l.stop,
			&l.calls.rate, &l.calls.tokens, &callsAge, &l.now)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		l.found = err == nil
		l.step.fill(stepAge)
		l.calls.fillCalls(callsAge)
		if l.kind != KindEndpoint {
			c.ttl = c.TTL + l.timeout
		}
		return err
	})
	if err := c.tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if !live {
		return fmt.Errorf("session %s: %w", c.Session, ErrSessionLost)
	}
	return nil
}
