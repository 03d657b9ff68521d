package inspect_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// bench adds what this package's tests do.
type bench struct{ *storetest.Bench }

func setup(t *testing.T) *bench {
	t.Helper()
	return &bench{storetest.Setup(t)}
}

func TestMain(m *testing.M) { testenv.Main(m) }

// BenchmarkForecast forecasts a run of ten million items and ten steps, of which half are done, with three like it at
// the same endpoints; and shows it, which reads the same planes for its counts.
func BenchmarkForecast(b *testing.B) {
	pool := testenv.Pool(b)
	fill := func(sql string, args ...any) { testenv.Must(pool.Exec(b.Context(), sql, args...))(b) }
	var runs []workqueue.RunID
	for range 4 {
		run := workqueue.NewRunID()
		runs = append(runs, run)
		fill(`INSERT INTO batchrun (id, plan, spec, state, items, started_at)
			VALUES ($1, 'p', '{}', 'running', 8192 * 1221, tranche_now() - interval '1 hour')`, run)
		fill(`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
			retry_backoff, needs) SELECT $1, s, 's' || s, 'endpoint', 'e' || s, 500, 16, 3, '1 min', '1 s',
			CASE WHEN s > 0 THEN ARRAY[s - 1]::smallint[] ELSE '{}' END FROM generate_series(0, 9) s`, run)
		fill(`INSERT INTO work_block (run_id, step, block, size, payload_bytes, ready, done)
			SELECT $1, s, i, 8192, 8192 * 100, CASE WHEN i < 600 THEN B'0'::bit(8192) ELSE ~B'0'::bit(8192) END,
			CASE WHEN i < 600 THEN ~B'0'::bit(8192) ELSE B'0'::bit(8192) END
			FROM generate_series(0, 9) s, generate_series(0, 1220) i`, run)
		fill(`INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, endpoint,
			created_at, sent_at, ended_at, took, service)
			SELECT gen_random_uuid(), $1, s, i / 16, 1, (~B'0'::bit(8192) << 7692), B'0'::bit(8192), 'recorded', 1, 'ready',
			'e' || s, tranche_now() - (i + 1) * interval '0.1 s', tranche_now() - (i + 1) * interval '0.1 s',
			tranche_now() - i * interval '0.1 s', 0.08, 'one' FROM generate_series(0, 9) s, generate_series(0, 1999) i`, run)
	}
	fill(`ANALYZE`)
	look := inspect.New(database.New(pool))
	for name, do := range map[string]func() error{
		"forecast": func() error { _, err := look.Suppose(b.Context(), runs[0], nil); return err },
		"run":      func() error { _, err := look.Run(b.Context(), runs[0]); return err },
		"list":     func() error { _, err := look.Runs(b.Context(), inspect.RunFilter{}); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				testenv.NoError(b, do())
			}
		})
	}
}
