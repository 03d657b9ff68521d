package faultyservice

import (
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

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
			Outage: &Outage{After: 2000, For: 4 * time.Second, Way: way, Until: opened},
			Load:   &Load{PerChunk: 40 * time.Millisecond}, Concurrency: 16})
		runs[way] = w.start(items, plan(at(string(way)), automatic, func(r *start.LoadRequest) {
			r.Steps[0].Chunk, r.Steps[0].Timeout, r.Steps[0].RetryBackoff = chunk, timeout, 300*time.Millisecond
		}))
	}
	t.Cleanup(func() {
		if n := w.number(`SELECT count(*) FROM work_slice WHERE cause = 'probe' AND bit_count(mask) <> 1`); n != 0 {
			t.Errorf("%d probes are of more than one item", n)
		}
		w.wantInvariants()
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
			t.Logf("%d chunks asked in vain, %d probes, %d extra slices", ledger.Fired(FaultOutage), probes, w.extra(run))
			if probes == 0 {
				t.Error("nobody probed")
			}
			if n := w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'bisect'`, run); n > 16 {
				t.Errorf("%d chunks were halved because of an outage", n)
			}
			if s := w.text(`SELECT breaker FROM endpoint_pace WHERE endpoint = $1`, string(way)); s != "closed" {
				t.Errorf("the breaker is %s in the end", s)
			}
		})
	}
}

// Poison in most chunks is no outage: single items work. The breaker, if it opens at all, is closed at once by its
// probe, and stays so.
func TestPoisonEverywhereIsNoOutage(t *testing.T) {
	t.Parallel()
	const items, chunk = 2000, 100
	w := setup(t)
	var bad []int
	for i := chunk / 2; i < items; i += chunk {
		bad = append(bad, i)
	}
	ledger := w.serve(Config{Poison: &Poison{Ordinals: bad, Way: WayError}, Concurrency: 8})
	begun := time.Now()
	run := w.start(items, plan(automatic, func(r *start.LoadRequest) { r.Steps[0].Chunk = chunk }))
	w.wantSound(run, ledger, items-len(bad), len(bad))
	w.wantInvariants()
	w.wantFired(ledger, FaultPoison)
	opened := w.number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker' AND after = 'open'`)
	extra, bound := w.extra(run), len(bad)*(perPoison(chunk, 3)+opened) // see TestPoisonStandsAlone
	bound += w.number(`SELECT count(*) FROM work_slice WHERE cause = 'probe'`)
	t.Logf("%d poison items: %d extra slices of %d allowed, the breaker opened %d times, %s", len(bad), extra, bound,
		opened, time.Since(begun).Round(time.Millisecond))
	if extra > bound {
		t.Errorf("%d extra slices; want at most %d", extra, bound)
	}
	if opened > 1 {
		t.Errorf("the breaker opened %d times\n%s", opened, w.situation())
	}
	if took := time.Since(begun); took > limit {
		t.Errorf("it took %s", took)
	}
}
