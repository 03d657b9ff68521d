package misbehave

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Chunks over a size fail, whatever is in them. The run is done all the same, and the next one is not cut so big.
func TestMemoryKiller(t *testing.T) {
	t.Parallel()
	const items, most = 6000, 100
	w := setup(t)
	ledger := w.serve(Config{Memory: &Memory{Items: most, Way: WayError}, Concurrency: 4})
	first := w.start(items, plan())
	w.wantSound(first, ledger, items, 0)
	w.wantInvariants()
	w.wantFired(ledger, FaultMemory)
	w.until("it is known what is too big", func() bool {
		return w.number(`SELECT count(*) FROM endpoint_pace WHERE chunk_cap IS NOT NULL
			AND chunk_cap_until > tranche_now()`) == 1
	})
	limit := w.number(`SELECT chunk_cap FROM endpoint_pace`)
	t.Logf("%d extra slices for %d chunks; chunks of up to %d from now on", w.extra(first), items/500, limit)
	if limit < most/2 || limit > most {
		t.Errorf("chunks are limited to %d items; %d is what works", limit, most)
	}
	if n := w.number(`SELECT count(*) FROM endpoint_change WHERE what = 'chunk_cap' AND reason <> ''`); n == 0 {
		t.Error("no reason was written down")
	}
	fired := ledger.Fired(FaultMemory)
	second := w.start(2000, plan())
	w.wantSound(second, ledger, 2000, 0)
	if n := ledger.Fired(FaultMemory) - fired; n != 0 {
		t.Errorf("%d chunks of the next run were too big", n)
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
	w.wantInvariants()
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
		t.Error("nobody slowed down")
	}
}

// One instance is fifty times slower than the others. It gets little, nothing is done twice, and nothing waits for it
// longer than it takes for what it holds.
func TestSlowInstance(t *testing.T) {
	t.Parallel()
	const items, chunk = 10_000, 50
	w := setup(t)
	slow := w.serve(Config{Load: &Load{PerChunk: time.Second}})
	fast := NewLedger(nil)
	for range 2 {
		w.serve(Config{Load: &Load{PerChunk: 20 * time.Millisecond}, Ledger: fast})
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
		t.Errorf("%d chunks were executed of %d; %d slices were made anew", few+many, cut, w.extra(run))
	}
	if took > limit {
		t.Errorf("it took %s", took)
	}
}

// A small run that is started while a large one keeps the services busy does not wait for it.
func TestSmallRunBesideALargeOne(t *testing.T) {
	t.Parallel()
	const large, small, each, servers = 200_000, 200, 400 * time.Microsecond, 4
	w := setup(t)
	ledger := w.serve(Config{Load: &Load{PerItem: each}, Concurrency: servers})
	busy := w.start(large, plan(automatic, func(r *start.LoadRequest) { r.Steps[0].Chunk = 100 }))
	w.until("the large run is under way", func() bool {
		return w.number(`SELECT coalesce(sum(bit_count(done)), 0) FROM work_block WHERE run_id = $1`, busy) > 5000
	})
	begun := time.Now()
	quick := w.start(small, plan(automatic))
	w.completed(quick)
	took := time.Since(begun)
	done := w.number(`SELECT coalesce(sum(bit_count(done)), 0) FROM work_block WHERE run_id = $1`, busy)
	if done == large {
		t.Fatal("the large run was over before")
	}
	t.Logf("%d items took %s while %d of the large run's %d were done", small, took.Round(time.Millisecond), done, large)
	if took > large*each/servers { // the large one takes as long at the least
		t.Errorf("the small run took %s", took)
	}
	if _, err := control.New(w.store).Cancel(t.Context(), control.Control{Run: busy, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	w.wantAsked(ledger)
}
