package inspect_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/export"
)

// BenchmarkExport reads runs of 200,000 items whose results have about 130 bytes, each 100th item failed. The run was
// never analyzed, as one that has just ended.
func BenchmarkExport(b *testing.B) {
	const items = 200_000
	pool := testenv.Pool(b)
	run := workqueue.NewRunID()
	for _, fill := range []string{
		`INSERT INTO batchrun (id, plan, spec, state, items) VALUES ($1, 'p', '{}', 'running', $2)`,
		`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
			retry_backoff) SELECT $1, 0, 'only', 'endpoint', 'e', 500, 1, 1, '1 min', '0' WHERE $2 > 0`,
		`INSERT INTO work_queue (run_id, ordinal, item_key, payload)
			SELECT $1, i, 'CUSTOMER-' || i, '{}' FROM generate_series(0, $2 - 1) i`,
		`INSERT INTO work_result (run_id, slice_id, ordinal, generation, step, result, error_code, error_message)
			SELECT $1, gen_random_uuid(), i, 1, 0,
				CASE WHEN i % 100 > 0 THEN convert_to('{"of":"' || rpad(i::text, 120, 'x') || '"}', 'UTF8') END,
				CASE WHEN i % 100 = 0 THEN 'BAD' END, CASE WHEN i % 100 = 0 THEN 'no' END
			FROM generate_series(0, $2 - 1) i`,
		`INSERT INTO work_block (run_id, step, block, size, ready, done, failed)
			SELECT $1, 0, i / 8192, count(*), B'0'::bit(8192),
				rpad(string_agg(CASE WHEN i % 100 > 0 THEN '1' ELSE '0' END, '' ORDER BY i), 8192, '0')::bit(8192),
				rpad(string_agg(CASE WHEN i % 100 = 0 THEN '1' ELSE '0' END, '' ORDER BY i), 8192, '0')::bit(8192)
			FROM generate_series(0, $2 - 1) i GROUP BY i / 8192`,
	} {
		if _, err := pool.Exec(b.Context(), fill, run, items); err != nil {
			b.Fatal(err)
		}
	}
	store := database.New(pool)
	for name, c := range map[string]struct {
		states []workqueue.Outcome
		want   int
	}{
		"all": {nil, items}, "failed": {[]workqueue.Outcome{workqueue.OutcomeFailed}, items / 100},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				err := storetest.Export(b.Context(), store, run, c.states, func(*export.Item) error { n++; return nil })
				if err != nil || n != c.want {
					b.Fatalf("%d items, %v; want %d", n, err, c.want)
				}
			}
			b.ReportMetric(float64(c.want)*float64(b.N)/b.Elapsed().Seconds(), "items/s")
		})
	}
}
