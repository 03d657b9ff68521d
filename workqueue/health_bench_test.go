package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
)

// BenchmarkHealth reads what is amiss beside a run of ten million items in three steps and ten thousand other runs. It
// is to take less than 200 ms.
func BenchmarkHealth(b *testing.B) {
	pool := testenv.Pool(b)
	fill := func(sql string) {
		testenv.Must(pool.Exec(b.Context(), sql))(b)
	}
	fill(`WITH big AS (
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
	fill(`INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, endpoint,
			ended_at, deadline)
		SELECT gen_random_uuid(), run_id, step, block, 1, B'1'::bit(8192), B'1'::bit(8192),
			CASE WHEN block < 60 THEN 'sent' ELSE 'recorded' END, 1, 'ready', 'e' || step,
			CASE WHEN block >= 60 THEN tranche_now() END, tranche_now() + interval '1 minute'
		FROM work_block, generate_series(1, 5)`)
	fill(`WITH small AS (
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
	fill(`ANALYZE`)
	store := health.New(database.New(pool))
	for b.Loop() {
		facts, err := store.Health(b.Context(), health.Limits{Waiting: 10 * time.Minute})
		if err != nil || len(facts.Working) < 50 || len(facts.Conditions) < 2 {
			b.Fatalf("%+v, %v", facts, err)
		}
	}
}
