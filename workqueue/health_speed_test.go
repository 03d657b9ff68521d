package workqueue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue/health"
)

// A run of ten million items in three steps and ten thousand other runs: what is read of it takes less than 200 ms.
//
// Not parallel: other tests of the package would be in what it measures.
//
//nolint:paralleltest // see above
func TestHealthOfALargeSystemIsReadQuickly(t *testing.T) {
	b := setup(t)
	b.Exec(`WITH big AS (
			INSERT INTO batchrun (id, plan, spec, state, items, started_at, sealed_at)
			SELECT gen_random_uuid(), 'big', '{}', 'running', 10000000, tranche_now() - interval '1 hour', tranche_now()
			RETURNING id),
		steps AS (
			INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
				retry_backoff)
			SELECT id, n, 's' || n, 'endpoint', 'e' || n, 500, 64, 3, '1 minute', '1 second'
			FROM big, generate_series(0, 2) n RETURNING run_id, step)
		INSERT INTO work_block (run_id, step, block, size, ready)
		SELECT run_id, step, block, 8192, ~B'0'::bit(8192) FROM steps, generate_series(0, 1220) block`)
	b.Exec(`INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, endpoint,
			ended_at, deadline)
		SELECT gen_random_uuid(), run_id, step, block, 1, B'1'::bit(8192), B'1'::bit(8192),
			CASE WHEN block < 60 THEN 'sent' ELSE 'recorded' END, 1, 'ready', 'e' || step,
			CASE WHEN block >= 60 THEN tranche_now() END, tranche_now() + interval '1 minute'
		FROM work_block, generate_series(1, 5)`)
	b.Exec(`WITH small AS (
			INSERT INTO batchrun (id, plan, spec, state, items, done, failed, started_at, sealed_at, finished_at)
			SELECT gen_random_uuid(), 'small', '{}', s, 10, CASE s WHEN 'completed' THEN 8 END,
				CASE s WHEN 'completed' THEN 2 END,
				tranche_now() - interval '1 hour', tranche_now(), CASE s WHEN 'completed' THEN tranche_now() END
			FROM (SELECT CASE n % 2 WHEN 0 THEN 'running' ELSE 'completed' END AS s FROM generate_series(1, 10000) n) n
			RETURNING id, state),
		steps AS (
			INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
				retry_backoff)
			SELECT id, 0, 's', 'endpoint', 'e' || (hashtext(id::text) % 50), 500, 64, 3, '1 minute', '1 second'
			FROM small RETURNING run_id)
		INSERT INTO work_block (run_id, step, block, size, ready)
		SELECT run_id, 0, 0, 10, CASE WHEN state = 'running' THEN (~B'0'::bit(8192)) << 8182 ELSE B'0'::bit(8192) END
		FROM steps JOIN small ON id = run_id`)
	b.Exec(`ANALYZE`)
	limits := health.Limits{Waiting: 10 * time.Minute}
	var p95, limit time.Duration
	for try := 0; try < 10 && (try == 0 || p95 > limit); try++ { // other tests may have been in the way
		p95, limit = slowestOf20(t, b, limits)
	}
	if p95 > limit {
		t.Errorf("19 of 20 took up to %s, ten times; want %s", p95, limit)
	}
}

// yardstick takes PostgreSQL less than 30 ms on a machine on which Health is to take no more than 200 ms.
const yardstick = `SELECT count(*) FROM generate_series(1, 100000) n WHERE sqrt(n) > 1`

// slowestOf20 asks twenty times, and returns what nineteen of them took at most, and what they may have taken: 200
// ms, or as much more as the machine is slower at the same time.
func slowestOf20(t *testing.T, b *bench, limits health.Limits) (p95, limit time.Duration) {
	t.Helper()
	var took, measured []time.Duration
	for range 20 {
		start := time.Now()
		facts, err := health.New(b.Store).Health(t.Context(), limits)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(start))
		is := func(kind health.Kind, of int64) bool {
			return slices.ContainsFunc(facts.Conditions, func(c health.Condition) bool { return c.Kind == kind && c.Of == of })
		}
		if len(facts.Working) < 50 || !is(health.OldestWaiting, 1) || !is(health.FailedItems, 5000-health.DefaultListed) {
			t.Fatalf("it says %+v", facts)
		}
		start = time.Now()
		b.Exec(yardstick)
		measured = append(measured, time.Since(start))
	}
	slices.Sort(took)
	slices.Sort(measured)
	median := measured[len(measured)/2]
	t.Logf("the median took %s, the slowest %s; the yardstick's took %s", took[len(took)/2], took[len(took)-1], median)
	return took[len(took)*95/100-1], max(200*time.Millisecond, 6*median)
}
