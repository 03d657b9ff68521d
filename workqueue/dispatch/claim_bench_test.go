package dispatch_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/session"
)

// BenchmarkClaim takes 32 slices of 500 items at a time, as a node does; the time is that of one claim. Beside the run
// that is claimed of, others wait at the same endpoint.
func BenchmarkClaim(b *testing.B) {
	for name, c := range map[string]struct {
		auto   bool
		others int
	}{"fixed": {}, "auto": {auto: true}, "auto among 1000 runs": {auto: true, others: 1000}} {
		b.Run(name, func(b *testing.B) {
			pool := testenv.Pool(b)
			store := database.New(pool)
			session, err := session.New(store).StartSession(b.Context(), session.NodeInfo{Host: "bench"}, time.Hour)
			testenv.NoError(b, err)
			fill := func(sql string, args ...any) { testenv.Must(pool.Exec(b.Context(), sql, args...))(b) }
			add := func(blocks int) workqueue.RunID {
				run := workqueue.NewRunID()
				fill(`INSERT INTO batchrun (id, plan, spec, state, items) VALUES ($1, 'p', '{}', 'running', 8192 * $2::int)`,
					run, blocks)
				fill(`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
					retry_backoff, in_flight_auto) VALUES ($1, 0, 'only', 'endpoint', 'e', 500, 1000, 1, '1 min', '0', $2)`,
					run, c.auto)
				fill(`INSERT INTO work_block (run_id, step, block, size, payload_bytes, ready)
					SELECT $1, 0, i, 8192, 8192 * 100, ~B'0'::bit(8192) FROM generate_series(1, $2) i`, run, blocks)
				return run
			}
			run := add(1500)
			for range c.others {
				add(1)
			}
			req := dispatch.ClaimRequest{Session: session, Run: run, MaxSlices: 32, MaxBytes: 1 << 20}
			for b.Loop() {
				claimed, err := dispatch.New(store).Claim(b.Context(), req)
				if err != nil || len(claimed.Slices) == 0 {
					b.Fatalf("%d slices, %v", len(claimed.Slices), err)
				}
				b.StopTimer()
				fill(`UPDATE work_slice SET state = 'recorded', ended_at = tranche_now() WHERE state = 'claimed'`)
				b.StartTimer()
			}
		})
	}
}
