package faultyservice

import (
	"cmp"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
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
		w.Check(w.T)
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
			// What is out when the breaker opens is sent again as it was.
			opened := w.number(`SELECT count(*) FROM endpoint_change WHERE endpoint = $1 AND what = 'breaker'
				AND after = 'open'`, endpointOf(name))
			extra, bound := w.extra(run), len(tc.ordinals)*(perPoison(chunk, tries)+opened)
			t.Logf("%d extra slices of %d allowed", extra, bound)
			if extra > bound {
				t.Errorf("%d extra slices; want at most %d", extra, bound)
			}
			n := w.number(`SELECT count(*) FROM work_result WHERE run_id = $1 AND error_code = $2`, run, tc.code)
			testenv.Same(t, n, bad, "items failed with code %s", tc.code)
			for ordinal, times := range ledger.Times(uuid.UUID(run), 1) {
				if most := tries + 10 + opened; times > most {
					t.Errorf("item %d was executed %d times, and the breaker opened %d times", ordinal, times, opened)
				}
			}
		})
	}
}

// Nothing works for a while in the middle of a run. The breaker opens instead of taking chunks apart and using up their
// attempts, probes find out when it is over, and no item is lost.
func TestOutage(t *testing.T) {
	t.Parallel()
	const items, chunk = 10_000, 100
	w := setup(t)
	// What is never answered is noticed only at its deadline, which what is answered has to keep on a busy machine.
	timeouts := map[Way]time.Duration{WayError: 2 * limit, WaySlots: 2 * limit, WayPanic: 2 * limit,
		WayHang: 15 * time.Second}
	ledgers, runs, noticed := map[Way]*Ledger{}, map[Way]workqueue.RunID{}, map[Way]func(){}
	for way, timeout := range timeouts { // all at the same time, each at an endpoint of its own
		opened := make(chan struct{})
		noticed[way] = sync.OnceFunc(func() { close(opened) })
		t.Cleanup(noticed[way])
		ledgers[way] = w.serve(Config{Endpoint: string(way),
			Outage:   &Outage{After: 2000, For: 4 * time.Second, Way: way, Until: opened},
			PerChunk: 40 * time.Millisecond, Concurrency: 16})
		runs[way] = w.start(items, plan(at(string(way)), automatic, func(r *start.LoadRequest) {
			r.Steps[0].Chunk, r.Steps[0].Timeout, r.Steps[0].RetryBackoff = chunk, timeout, 300*time.Millisecond
		}))
	}
	t.Cleanup(func() {
		testenv.Same(t, w.number(`SELECT count(*) FROM work_slice WHERE cause = 'probe' AND bit_count(mask) <> 1`), 0,
			"probes are of more than one item")
		w.Check(w.T)
	})
	for way := range timeouts {
		t.Run(string(way), func(t *testing.T) {
			t.Parallel()
			w, ledger, run := w.in(t), ledgers[way], runs[way]
			w.until("the breaker opens", func() bool {
				return w.number(`SELECT count(*) FROM endpoint_change WHERE endpoint = $1 AND what = 'breaker'
					AND after = 'open' AND reason <> ''`, string(way)) > 0
			})
			noticed[way]()
			w.wantSound(run, ledger, items, 0)
			w.wantFired(ledger, FaultOutage)
			probes := w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'probe'`, run)
			t.Logf("%d chunks unanswered, %d probes, %d extra slices", ledger.Fired(FaultOutage), probes, w.extra(run))
			if probes == 0 {
				t.Error("no one probed")
			}
			if n := w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'bisect'`, run); n > 16 {
				t.Errorf("%d chunks were halved because of an outage", n)
			}
			testenv.Same(t, w.text(`SELECT breaker FROM endpoint_pace WHERE endpoint = $1`, string(way)), "closed",
				"the breaker in the end")
		})
	}
}

// A service that takes so many items a second and refuses the others: none fails, and the rate is found.
func TestThrottle(t *testing.T) {
	t.Parallel()
	const items, rate = 6000, 1000
	w := setup(t)
	ledger := w.serve(Config{Throttle: &Throttle{PerSecond: rate}, Concurrency: 16})
	begun := time.Now()
	run := w.start(items, plan(automatic, func(r *start.LoadRequest) { r.Steps[0].RetryBackoff = time.Second }))
	w.wantSound(run, ledger, items, 0)
	w.Check(w.T)
	took := time.Since(begun)
	w.wantFired(ledger, FaultThrottle)
	times := 0
	for _, n := range ledger.Times(uuid.UUID(run), 1) {
		times += n
	}
	t.Logf("%s, where %s is possible; %.2f executions an item", took.Round(time.Millisecond),
		time.Duration(items/rate-1)*time.Second, float64(times)/items)
	if took > limit {
		t.Errorf("it took %s", took)
	}
	if n := w.number(`SELECT count(*) FROM endpoint_change WHERE what IN ('rate', 'in_flight')`); n == 0 {
		t.Error("no one slowed down")
	}
}

// One instance is fifty times slower than the others. It gets little, nothing is done twice, and nothing waits for it
// longer than it takes for what it holds.
func TestSlowInstance(t *testing.T) {
	t.Parallel()
	const items, chunk = 10_000, 50
	w := setup(t)
	slow := w.serve(Config{PerChunk: time.Second})
	fast := &Ledger{}
	for range 2 {
		w.serve(Config{PerChunk: 20 * time.Millisecond, Ledger: fast})
	}
	begun := time.Now()
	run := w.start(items, plan(automatic, func(r *start.LoadRequest) { r.Steps[0].Chunk = chunk }))
	if done, failed := w.completed(run); done != items || failed != 0 {
		t.Errorf("%d done and %d failed of %d", done, failed, items)
	}
	took := time.Since(begun)
	few, many := len(slow.Entries()), len(fast.Entries())
	t.Logf("%s; %d chunks for the slow instance, %d for the two fast ones", took.Round(time.Millisecond), few, many)
	if few == 0 || few > many/5 {
		t.Errorf("the slow instance got %d chunks, the others %d", few, many)
	}
	cut := w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'ready'`, run)
	if few+many != cut || w.extra(run) != 0 {
		t.Errorf("%d chunks were executed of %d; %d slices were reissued", few+many, cut, w.extra(run))
	}
	if took > limit {
		t.Errorf("it took %s", took)
	}
}
