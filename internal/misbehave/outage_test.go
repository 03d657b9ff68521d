package misbehave

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Nothing works for a while in the middle of a run. The breaker opens instead of taking chunks apart and using up their
// attempts, probes find out when it is over, and no item is lost.
func TestOutage(t *testing.T) {
	t.Parallel()
	const items, chunk, lasts = 10_000, 100, 4 * time.Second
	for way, timeout := range map[Way]time.Duration{
		WayError: time.Minute,
		WaySlots: time.Minute,
		WayPanic: time.Minute,
		WayHang:  700 * time.Millisecond,
	} {
		t.Run(string(way), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			ledger := w.serve(Config{Outage: &Outage{After: 2000, For: lasts, Way: way},
				Load: &Load{PerChunk: 40 * time.Millisecond}, Concurrency: 16})
			run := w.start(items, plan(automatic, func(r *workqueue.LoadRequest) {
				r.Steps[0].Chunk, r.Steps[0].Timeout, r.Steps[0].RetryBackoff = chunk, timeout, 300*time.Millisecond
			}))
			w.wantSound(run, ledger, items, 0)
			w.wantFired(ledger, FaultOutage)
			t.Logf("%d chunks asked in vain, %d probes, %d extra slices; %s after its end the run was complete",
				ledger.Fired(FaultOutage), w.number(`SELECT count(*) FROM work_slice WHERE cause = 'probe'`), w.extra(run),
				w.sinceOutage(ledger, lasts).Round(time.Millisecond))
			if n := w.number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker' AND after = 'open'
				AND reason <> ''`); n == 0 {
				t.Error("the breaker did not open")
			}
			if n := w.number(`SELECT count(*) FROM work_slice WHERE cause = 'probe' AND bit_count(mask) <> 1`); n != 0 {
				t.Errorf("%d probes are of more than one item", n)
			}
			if n := w.number(`SELECT count(*) FROM work_slice WHERE cause = 'probe'`); n == 0 {
				t.Error("nobody probed")
			}
			if n := w.number(`SELECT count(*) FROM work_slice WHERE cause = 'bisect'`); n > 16 {
				t.Errorf("%d chunks were halved because of an outage", n)
			}
			if s := w.text(`SELECT breaker FROM endpoint_pace`); s != "closed" {
				t.Errorf("the breaker is %s in the end", s)
			}
		})
	}
}

// sinceOutage is how long ago the outage ended.
func (w *world) sinceOutage(ledger *Ledger, lasts time.Duration) time.Duration {
	w.Helper()
	for _, e := range ledger.Entries() {
		if e.Fault == FaultOutage {
			return time.Since(e.At.Add(lasts))
		}
	}
	return 0
}

// Poison in most chunks is no outage: single items work. The breaker, if it opens at all, is closed at once by its
// probe, and stays so.
func TestPoisonEverywhereIsNoOutage(t *testing.T) {
	t.Parallel()
	const items, chunk = 4000, 100
	w := setup(t)
	var bad []int
	for i := chunk / 2; i < items; i += chunk {
		bad = append(bad, i)
	}
	ledger := w.serve(Config{Poison: &Poison{Ordinals: bad, Way: WayError}, Concurrency: 8})
	begun := time.Now()
	run := w.start(items, plan(automatic, func(r *workqueue.LoadRequest) { r.Steps[0].Chunk = chunk }))
	w.wantSound(run, ledger, items-len(bad), len(bad))
	w.wantFired(ledger, FaultPoison)
	opened := w.number(`SELECT count(*) FROM endpoint_change WHERE what = 'breaker' AND after = 'open'`)
	extra, bound := w.extra(run), len(bad)*perPoison(chunk, 3)
	t.Logf("%d poison items: %d extra slices of %d allowed, the breaker opened %d times, %s", len(bad), extra, bound,
		opened, time.Since(begun).Round(time.Millisecond))
	if extra > bound+opened {
		t.Errorf("%d extra slices; want at most %d", extra, bound)
	}
	if opened > 1 {
		t.Errorf("the breaker opened %d times\n%s", opened, w.situation())
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
