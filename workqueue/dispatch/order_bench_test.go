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
