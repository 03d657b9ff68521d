package dispatch_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
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
			fill := func(sql string, args ...any) {
				testenv.Must(pool.Exec(b.Context(), sql, args...))(b)
			}
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

// BenchmarkOrder works off runs whose items go one at a time, ten of each value, and the same items side by side:
// by the store alone, with two who claim and record sixteen requests at a time.
func BenchmarkOrder(b *testing.B) {
	const items, lanes = 200_000, 20_000
	values := make([]string, items)
	for i := range values {
		values[i] = fmt.Sprint("customer-", i*7919%lanes)
	}
	for _, ordered := range []bool{false, true} {
		b.Run(fmt.Sprint("ordered ", ordered), func(b *testing.B) {
			store := database.New(testenv.Pool(b))
			session, err := session.New(store).StartSession(b.Context(), session.NodeInfo{Host: "bench"}, storetest.SessionTTL)
			testenv.NoError(b, err)
			for b.Loop() {
				req := storetest.Chunked(500)
				req.Session = session
				if ordered {
					req.Order = byValue(false)
				}
				begin := time.Now()
				loaded := testenv.Must(start.New(store).Load(b.Context(), req, valued(values...)))(b)
				b.ReportMetric(items/time.Since(begin).Seconds(), "loaded/s")
				begin = time.Now()
				workOff(b, store, session, loaded.Run)
				b.ReportMetric(items/time.Since(begin).Seconds(), "items/s")
			}
		})
	}
}

func workOff(b *testing.B, store *database.DB, session workqueue.SessionID, run workqueue.RunID) {
	b.Helper()
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for {
				claimed, err := dispatch.New(store).Claim(b.Context(), dispatch.ClaimRequest{Session: session, Run: run,
					MaxSlices: 16,
					MaxBytes:  1 << 20})
				if errors.Is(err, workqueue.ErrBusy) {
					continue
				}
				if err != nil {
					b.Error(err)
					return
				}
				var answers []settle.Answer
				for _, s := range claimed.Slices {
					answers = append(answers, storetest.Whole(s))
				}
				recorded, err := settle.New(store).Record(b.Context(), answers)
				if err != nil {
					b.Error(err)
					return
				}
				if len(recorded.Completed) > 0 {
					return
				}
				if len(answers) == 0 {
					view, err := inspect.New(store).Runs(b.Context(), inspect.RunFilter{Limit: 1})
					if err != nil || view[0].State == "completed" {
						return
					}
				}
			}
		})
	}
	group.Wait()
}
