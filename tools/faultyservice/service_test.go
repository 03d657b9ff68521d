package faultyservice

import (
	"cmp"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Items that fail every chunk that they are in end up alone, whatever the way; the others are done. It takes no more
// slices than the bound.
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
	for name, tc := range cases { // all at the same time, each at an endpoint of its own
		endpoint := endpointOf(name)
		ledgers[name] = w.serve(Config{Endpoint: endpoint, Poison: &Poison{Ordinals: tc.ordinals, Way: tc.way},
			Timeout: tc.timeout, Concurrency: 4})
		runs[name] = w.start(items, plan(at(endpoint), func(r *start.LoadRequest) {
			r.Steps[0].Chunk, r.Steps[0].MaxAttempts = chunk, cmp.Or(tc.attempts, attempts)
		}))
	}
	t.Cleanup(func() { w.Check(w.T) })
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
			// Each poison item costs two slices for each halving, and its attempts.
			bound := len(tc.ordinals) * (2*bits.Len(chunk-1) + tries + opened)
			if extra := w.extra(run); extra > bound {
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
			if n := w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'probe'`, run); n == 0 {
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
	const items = 6000
	w := setup(t)
	ledger := w.serve(Config{Throttle: &Throttle{PerSecond: 1000}, Concurrency: 16})
	run := w.start(items, plan(automatic, func(r *start.LoadRequest) { r.Steps[0].RetryBackoff = time.Second }))
	w.wantSound(run, ledger, items, 0)
	w.Check(w.T)
	w.wantFired(ledger, FaultThrottle)
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
	run := w.start(items, plan(automatic, func(r *start.LoadRequest) { r.Steps[0].Chunk = chunk }))
	if done, failed := w.completed(run); done != items || failed != 0 {
		t.Errorf("%d done and %d failed of %d", done, failed, items)
	}
	few, many := len(slow.Entries()), len(fast.Entries())
	if few == 0 || few > many/5 {
		t.Errorf("the slow instance got %d chunks, the others %d", few, many)
	}
	cut := w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'ready'`, run)
	if few+many != cut || w.extra(run) != 0 {
		t.Errorf("%d chunks were executed of %d; %d slices were reissued", few+many, cut, w.extra(run))
	}
}

// Whatever a service claims that does not fit: no item is lost, none has a wrong result, and what deserves a look is in
// quarantine.
func TestLiar(t *testing.T) {
	t.Parallel()
	const items, chunk = 1500, 100
	w := setup(t)
	cases := map[Lie]struct {
		quarantined string // reason; "" for none
		once        bool   // nothing must be asked again
		deadline    bool   // the items come again after their deadline
		either      bool   // of two replies that contradict each other, the one that is recorded first counts
	}{
		LieForeign:   {quarantined: "foreign_ordinal"},
		LieOthers:    {quarantined: "foreign_ordinal"},
		LieMissing:   {},
		LieEmpty:     {},
		LieCountHigh: {deadline: true},
		LieCountLow:  {quarantined: "final"},
		LieDoubled:   {once: true},
		LieTwice:     {once: true, either: true},
		LieRun:       {once: true}, // the slice is the fence, and it is right
		LieSlice:     {deadline: true},
		LieEndpoint:  {quarantined: "wrong_endpoint", deadline: true},
		LieGarbage:   {quarantined: "json"},
		LieTruncated: {quarantined: "json"},
		LieBoth:      {quarantined: "slot"},
	}
	ledgers, runs := map[Lie]*Ledger{}, map[Lie]workqueue.RunID{}
	for lie, tc := range cases { // all at the same time, each at an endpoint of its own
		endpoint := endpointOf(string(lie))
		liar := testenv.Must(NewLiar(testenv.Conn(t, w.NS), endpoint, lie))(t)
		nodetest.Run(t, "liar", liar.Run)
		ledgers[lie] = liar.Ledger
		runs[lie] = w.start(items, plan(at(endpoint), func(r *start.LoadRequest) {
			r.Steps[0].Chunk = chunk
			if tc.deadline { // longer than a slow node takes to judge a reply: late ones are not looked at
				r.Steps[0].Timeout = 15 * time.Second
			}
		}))
	}
	t.Cleanup(func() {
		if n := w.number(`SELECT count(*) FROM quarantine WHERE run_id IS NULL OR run_id <> ALL ($1)`,
			slices.Collect(maps.Values(runs))); n != 0 {
			t.Errorf("%d messages in quarantine are of no run", n)
		}
		w.Check(w.T)
	})
	for lie, tc := range cases {
		t.Run(string(lie), func(t *testing.T) {
			t.Parallel()
			w, run := w.in(t), runs[lie]
			failed := 0
			if tc.either {
				_, failed = w.completed(run)
			}
			w.wantSound(run, ledgers[lie], items-failed, failed)
			w.wantFired(ledgers[lie], Fault(lie))
			n := w.number(`SELECT count(*) FROM quarantine WHERE run_id = $1 AND reason = $2`, run, tc.quarantined)
			testenv.Same(t, w.number(`SELECT count(*) FROM quarantine WHERE run_id = $1`, run)-n, 0,
				"messages in quarantine for other reasons than %q", tc.quarantined)
			testenv.Same(t, (n > 0), (tc.quarantined != ""), "%d messages are in quarantine for %q", n, tc.quarantined)
			testenv.Same(t, (w.extra(run) == 0), tc.once, "slices were reissued")
			n = w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND error_code IN ('deadline', 'lost')`, run)
			testenv.Same(t, (n > 0), tc.deadline, "%d slices passed their deadline, or had lost their reply", n)
		})
	}
}
