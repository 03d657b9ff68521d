package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/tranchehq/tranche/tools/demokit"
	"github.com/tranchehq/tranche/tools/faultyservice"
)

const (
	poisonItems    = 5_000
	poisonChunk    = 500 // the default
	poisonAttempts = 3   // likewise
	isolateWithin  = 90 * time.Second

	countExtra = `SELECT count(*)::float8 FROM work_slice WHERE run_id = $1 AND cause <> 'ready'`
	timeFailed = `SELECT coalesce(extract(epoch FROM max(ended_at) - min(ended_at)), 0)::float8 FROM work_slice
		WHERE run_id = $1 AND error_code IS NOT NULL`
)

type poisonCase struct {
	name     string
	endpoint string
	ordinals []int
	way      faultyservice.Way
}

func poisonCases() []poisonCase {
	ten := rand.New(rand.NewPCG(4, 2026)).Perm(poisonItems)[:10] //nolint:gosec // the same each time
	return []poisonCase{
		{"1, by a retryable error", "poison-one", []int{1234}, faultyservice.WayError},
		{"2 side by side", "poison-two", []int{1249, 1250}, faultyservice.WayError},
		{"10 at random", "poison-ten", ten, faultyservice.WayError},
		{"1, by a permanent error", "poison-refuse", []int{77}, faultyservice.WayRefuse},
		{"1, by a panic", "poison-panic", []int{4999}, faultyservice.WayPanic},
		{"1, by hanging for 1 s", "poison-hang", []int{2500}, faultyservice.WayHang},
	}
}

// measureIsolation measures finding items that fail their chunk: one run per case, all concurrent, default settings.
func (b *bed) measureIsolation(ctx context.Context, t *table) {
	cases := poisonCases()
	runs := make([]string, len(cases))
	for i, c := range cases {
		b.misbehave(faultyservice.Config{Endpoint: c.endpoint, Timeout: time.Second, Concurrency: 4,
			Poison: &faultyservice.Poison{Ordinals: c.ordinals, Way: c.way}}, true)
		runs[i] = b.begin(ctx, c.endpoint, poisonItems)
	}
	for i, c := range cases {
		b.until(ctx, isolateWithin, "run "+runs[i]+" completes", hasCompleted, runs[i])
		b.ledger(c.endpoint, faultyservice.FaultPoison)
		poison, extra := float64(len(c.ordinals)), b.number(ctx, countExtra, runs[i])
		t.add(c.name, thousands(extra), fmt.Sprintf("%.1f", extra/poison),
			fmt.Sprint(2*bits.Len(poisonChunk-1)+poisonAttempts), fmt.Sprintf("%.1f", b.number(ctx, timeFailed, runs[i])),
			thousands(poisonItems-poison-b.number(ctx, countDone, runs[i])))
	}
	fmt.Fprintf(os.Stderr, "misbehave poison is isolated\n")
}

const (
	outageItems  = 40_000
	outageAfter  = 12_000
	outageFor    = 30 * time.Second
	outageWithin = 3 * time.Minute

	countProbes = `SELECT count(*)::float8 FROM work_slice WHERE run_id = $1 AND cause = 'probe'`
)

type outageCase struct {
	says string
	way  faultyservice.Way
	run  string
}

func (o outageCase) endpoint() string { return "outage-" + string(o.way) }

// beginOutages starts a run for each way, all concurrent. Settings are defaults, except chunks small enough to
// measure a rate, and the timeout of requests that are never answered.
func (b *bed) beginOutages(ctx context.Context) []outageCase {
	cases := []outageCase{
		{says: "each chunk fails", way: faultyservice.WayError},
		{says: "each item fails with a retryable error", way: faultyservice.WaySlots},
		{says: "nothing is answered (deadline 5 s)", way: faultyservice.WayHang},
	}
	for i, o := range cases {
		b.misbehave(faultyservice.Config{Endpoint: o.endpoint(), Concurrency: 64,
			Load:   &faultyservice.Load{PerChunk: 5 * time.Millisecond, PerItem: 2 * time.Millisecond, Servers: 8},
			Outage: &faultyservice.Outage{After: outageAfter, For: outageFor, Way: o.way}}, true)
		flags := []string{"--chunk", "100"}
		if o.way == faultyservice.WayHang {
			flags = append(flags, "--request-timeout", "5s")
		}
		cases[i].run = b.begin(ctx, o.endpoint(), outageItems, flags...)
	}
	return cases
}

func (b *bed) awaitOutages(ctx context.Context, cases []outageCase, t *table) {
	for _, o := range cases {
		b.until(ctx, outageWithin, "run "+o.run+" completes", hasCompleted, o.run)
		ledger := b.ledger(o.endpoint(), faultyservice.FaultOutage)
		before, back, after := outageRates(ledger.Entries())
		failed := b.number(ctx, countFailed, o.run)
		t.add(o.says, thousands(before), fmt.Sprint(ledger.Fired(faultyservice.FaultOutage)),
			thousands(b.number(ctx, countProbes, o.run)), fmt.Sprintf("%.1f s", back), thousands(after), thousands(failed),
			thousands(outageItems-b.number(ctx, countDone, o.run)-failed))
	}
	fmt.Fprintf(os.Stderr, "misbehave outages are over\n")
}

// outageRates returns from the ledger the items per second before and after an outage, and the seconds from its end
// to the first answered chunk. Entries are written when chunks start.
func outageRates(entries []faultyservice.Entry) (before, back, after float64) {
	var down, up, last time.Time // first failed chunk, first answered one after it, last one
	for _, e := range entries {
		switch {
		case e.Fault == faultyservice.FaultOutage:
			if down.IsZero() {
				down = e.At
			}
		case down.IsZero():
			before += float64(len(e.Ordinals))
		default:
			if up.IsZero() {
				up = e.At
			}
			after += float64(len(e.Ordinals))
			last = e.At
		}
	}
	return before / down.Sub(entries[0].At).Seconds(), up.Sub(down.Add(outageFor)).Seconds(),
		after / last.Sub(up).Seconds()
}

type otherCase struct {
	scenario, note               string
	items, seconds, failed, lost float64
}

func measureMisbehaviour(ctx context.Context, cfg config, pg *cluster, rep *report) {
	poison := rep.table("poison", "extra slices", "a poison item", "at most", "seconds to isolate", "innocents lost")
	outage := rep.table("the service meanwhile", "items/s before", "chunks failed", "of them probes", "back after its end",
		"items/s after", "failed", "lost")
	others := rep.table("the service", "items", "seconds", "failed", "lost or wrong", "note")
	pg.onBed(ctx, cfg.binary, "tranche", func(b *bed) {
		outages := b.beginOutages(ctx)
		b.measureIsolation(ctx, poison)
		for _, measure := range []func(*bed, context.Context) otherCase{
			(*bed).memoryKiller, (*bed).throttled, (*bed).slowInstance, (*bed).liars,
		} {
			c := measure(b, ctx)
			fmt.Fprintf(os.Stderr, "misbehave %s\n", c.scenario)
			others.add(c.scenario, thousands(c.items), fmt.Sprintf("%.1f", c.seconds), thousands(c.failed), thousands(c.lost),
				c.note)
		}
		b.awaitOutages(ctx, outages, outage)
	})
}

const otherWithin = 90 * time.Second

func (b *bed) through(ctx context.Context, c *otherCase, endpoint string, n int, flags ...string) {
	begun := time.Now()
	b.ended(ctx, b.begin(ctx, endpoint, n, flags...), begun, c)
}

func (b *bed) ended(ctx context.Context, run string, begun time.Time, c *otherCase) {
	b.until(ctx, otherWithin, "run "+run+" completes", hasCompleted, run)
	c.seconds = max(c.seconds, time.Since(begun).Seconds())
	items, failed := b.number(ctx, countItems, run), b.number(ctx, countFailed, run)
	c.items += items
	c.failed += failed
	c.lost += items - failed - b.number(ctx, countRight, run)
}

const countItems = `SELECT items::float8 FROM batchrun WHERE id = $1`

// countRight counts correct results, which equal their payload.
const countRight = `SELECT count(*)::float8 FROM work_result p JOIN work_queue q USING (run_id, ordinal)
WHERE run_id = $1 AND convert_from(p.result, 'UTF8') = q.payload`

// memoryKiller fails on chunks of over 100 items. There are two runs: the second benefits from the first.
func (b *bed) memoryKiller(ctx context.Context) (c otherCase) {
	const endpoint, most = "memory", 100
	c.scenario = fmt.Sprintf("fails chunks over %d items", most)
	b.misbehave(faultyservice.Config{Endpoint: endpoint, Concurrency: 4,
		Memory: &faultyservice.Memory{Items: most, Way: faultyservice.WayError}}, true)
	var fired [2]int
	for i := range fired {
		b.through(ctx, &c, endpoint, 20_000)
		fired[i] = b.ledger(endpoint, faultyservice.FaultMemory).Fired(faultyservice.FaultMemory)
	}
	limit := b.number(ctx, `SELECT coalesce(max(chunk_cap), 0)::float8 FROM endpoint_pace WHERE endpoint = $1`, endpoint)
	c.note = fmt.Sprintf("two runs: %d chunks were too big in the first, %d in the second; chunks were limited to %.0f",
		fired[0], fired[1]-fired[0], limit)
	return c
}

// throttled limits its items per second.
func (b *bed) throttled(ctx context.Context) (c otherCase) {
	const endpoint, rate, n = "throttled", 2000, 16_000
	c.scenario = fmt.Sprintf("refuses over %s items/s", thousands(rate))
	b.misbehave(faultyservice.Config{Endpoint: endpoint, Concurrency: 16,
		Throttle: &faultyservice.Throttle{PerSecond: rate}}, true)
	b.through(ctx, &c, endpoint, n)
	executions := 0
	for _, e := range b.ledger(endpoint, faultyservice.FaultThrottle).Entries() {
		executions += len(e.Ordinals)
	}
	c.note = fmt.Sprintf("%.1f s is possible; each item was asked %.2f times", float64(n)/rate-1, float64(executions)/n)
	return c
}

// slowInstance is one instance fifty times slower than two others.
func (b *bed) slowInstance(ctx context.Context) (c otherCase) {
	const endpoint = "uneven"
	c.scenario = "has one instance of three that is 50 times slower"
	for _, d := range []time.Duration{time.Second, 20 * time.Millisecond, 20 * time.Millisecond} {
		b.misbehave(faultyservice.Config{Endpoint: endpoint, Load: &faultyservice.Load{PerChunk: d}}, false)
	}
	b.through(ctx, &c, endpoint, 50_000, "--chunk", "50")
	c.note = fmt.Sprintf("%.1f s without the slow one", 50_000/50*0.020/4)
	return c
}

// liars send invalid replies, each of another kind, at the first attempt of each chunk.
func (b *bed) liars(ctx context.Context) (c otherCase) {
	lies := faultyservice.Lies()
	c.scenario = fmt.Sprintf("lies, in %d ways", len(lies))
	lying, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	errs := make([]error, len(lies))
	err := demokit.Try(func() {
		begun := time.Now()
		runs := make([]string, len(lies))
		for i, lie := range lies {
			endpoint := fmt.Sprintf("liar-%d", i)
			liar := demokit.Must(faultyservice.NewLiar(b.nc, faultyservice.LiarConfig{Endpoint: endpoint, Lie: lie}))
			running.Go(func() { errs[i] = liar.Run(lying) })
			runs[i] = b.begin(ctx, endpoint, 2000, "--request-timeout", "2s")
		}
		for _, run := range runs {
			b.ended(ctx, run, begun, &c)
		}
	})
	stop()
	running.Wait()
	demokit.Stop(errors.Join(append(errs, err)...))
	c.note = fmt.Sprintf("%.0f messages in quarantine", b.number(ctx, `SELECT count(*)::float8 FROM quarantine`))
	return c
}
