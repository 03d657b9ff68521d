package faultyservice

import (
	"cmp"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Items that fail every chunk that they are in end up alone, whatever the way; the others are done. It takes no more
// slices than the bound, and no long time.
func TestPoisonStandsAlone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const items, chunk, attempts = 5000, 500, 3
	random := rand.New(rand.NewPCG(4, 2026))
	several := random.Perm(items)[:10]
	cases := map[string]struct {
		ordinals []int
		way      Way
		code     string
		attempts int // 0: as above
		timeout  time.Duration
	}{
		"one":               {ordinals: []int{1234}, way: WayError, code: CodePoison},
		"two side by side":  {ordinals: []int{1249, 1250}, way: WayError, code: CodePoison},
		"ten":               {ordinals: several, way: WayError, code: CodePoison},
		"one that refuses":  {ordinals: []int{77}, way: WayRefuse, code: CodePoison},
		"one that panics":   {ordinals: []int{4999}, way: WayPanic, code: "panic"},
		"one that hangs":    {ordinals: []int{0}, way: WayHang, code: "timeout", timeout: time.Second},
		"one, first time":   {ordinals: []int{2500}, way: WayError, code: CodePoison, attempts: 1},
		"ten that refuse":   {ordinals: several, way: WayRefuse, code: CodePoison},
		"one, by its slots": {ordinals: []int{600}, way: WaySlots, code: CodePoison},
	}
	ledgers, runs := map[string]*Ledger{}, map[string]workqueue.RunID{}
	begun := time.Now()
	for name, tc := range cases { // all at the same time, each at an endpoint of its own
		endpoint := endpointOf(name)
		ledgers[name] = w.serve(Config{Endpoint: endpoint, Poison: &Poison{Ordinals: tc.ordinals, Way: tc.way},
			Timeout: tc.timeout, Concurrency: 4})
		runs[name] = w.start(items, plan(at(endpoint), func(r *start.LoadRequest) {
			r.Steps[0].Chunk, r.Steps[0].MaxAttempts = chunk, cmp.Or(tc.attempts, attempts)
		}))
	}
	t.Cleanup(func() {
		w.wantInvariants()
		if took := time.Since(begun); took > limit {
			t.Errorf("it took %s", took)
		}
	})
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, ledger, run := w.in(t), ledgers[name], runs[name]
			tries, bad := cmp.Or(tc.attempts, attempts), len(tc.ordinals)
			if tc.way == WaySlots { // it is the reply that says so: all items of its chunk fail, and it is not cut
				bad = chunk
			}
			w.wantSound(run, ledger, items-bad, bad)
			w.wantFired(ledger, FaultPoison)
			// What is out when the breaker opens is sent once more as it was.
			opened := w.number(`SELECT count(*) FROM endpoint_change WHERE endpoint = $1 AND what = 'breaker'
				AND after = 'open'`, endpointOf(name))
			extra, bound := w.extra(run), len(tc.ordinals)*(perPoison(chunk, tries)+opened)
			t.Logf("%d extra slices of %d allowed", extra, bound)
			if extra > bound {
				t.Errorf("%d extra slices; want at most %d\n%s", extra, bound, w.situation())
			}
			n := w.number(`SELECT count(*) FROM work_part WHERE run_id = $1 AND error_code = $2`, run, tc.code)
			if n != bad {
				t.Errorf("%d items failed with code %s; want %d", n, tc.code, bad)
			}
			for ordinal, times := range ledger.Times(uuid.UUID(run), 1) {
				if most := tries + 10 + opened; times > most {
					t.Errorf("item %d was executed %d times, and the breaker opened %d times", ordinal, times, opened)
				}
			}
		})
	}
}
