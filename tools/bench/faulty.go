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
		{"1, by an error that may pass", "poison-one", []int{1234}, faultyservice.WayError},
		{"2 side by side", "poison-two", []int{1249, 1250}, faultyservice.WayError},
		{"10 at random", "poison-ten", ten, faultyservice.WayError},
		{"1, by an error permanently", "poison-refuse", []int{77}, faultyservice.WayRefuse},
		{"1, by a panic", "poison-panic", []int{4999}, faultyservice.WayPanic},
		{"1, by hanging for 1 s", "poison-hang", []int{2500}, faultyservice.WayHang},
	}
}

// measureIsolation measures finding items that fail their chunk: one run per case, all concurrent, default settings.
func measureIsolation(ctx context.Context, l *lab, t *table) error {
	cases := poisonCases()
	runs := make([]string, len(cases))
	for i, c := range cases {
		err := l.misbehave(faultyservice.Config{Endpoint: c.endpoint, Timeout: time.Second, Concurrency: 4,
			Poison: &faultyservice.Poison{Ordinals: c.ordinals, Way: c.way}}, true)
		if err != nil {
			return err
		}
		if runs[i], err = l.begin(ctx, c.endpoint, poisonItems); err != nil {
			return err
		}
	}
	for i, c := range cases {
		if err := l.isolated(ctx, t, c, runs[i]); err != nil {
			return fmt.Errorf("poison: %s: %w", c.name, err)
		}
	}
	fmt.Fprintf(os.Stderr, "misbehave poison is isolated\n")
	return nil
}

func (l *lab) isolated(ctx context.Context, t *table, c poisonCase, run string) error {
	if err := l.until(ctx, isolateWithin, "run "+run+" completes", hasCompleted, run); err != nil {
		return err
	}
	if _, err := l.ledger(c.endpoint, faultyservice.FaultPoison); err != nil {
		return err
	}
	found, err := l.numbers(ctx, run, countExtra, timeFailed, countDone)
	if err != nil {
		return err
	}
	poison := len(c.ordinals)
	t.add(c.name, thousands(found[0]), fmt.Sprintf("%.1f", found[0]/float64(poison)),
		fmt.Sprint(2*bits.Len(poisonChunk-1)+poisonAttempts), fmt.Sprintf("%.1f", found[1]),
		thousands(float64(poisonItems-poison)-found[2]))
	return nil
}

const (
	outageItems  = 40_000
	outageAfter  = 12_000
	outageFor    = 30 * time.Second
	outageWithin = 3 * time.Minute

	countProbes = `SELECT count(*)::float8 FROM work_slice WHERE run_id = $1 AND cause = 'probe'`
)

type outages struct {
	ways []faultyservice.Way
	runs []string
}

func outageEndpoint(way faultyservice.Way) string { return "outage-" + string(way) }

// beginOutages starts a run for each way, all concurrent. Settings are defaults, except chunks small enough to
// measure a rate, and the timeout of requests that are never answered.
func beginOutages(ctx context.Context, l *lab) (*outages, error) {
	o := &outages{ways: []faultyservice.Way{faultyservice.WayError, faultyservice.WaySlots, faultyservice.WayHang}}
	for _, way := range o.ways {
		err := l.misbehave(faultyservice.Config{Endpoint: outageEndpoint(way), Concurrency: 64,
			Load:   &faultyservice.Load{PerChunk: 5 * time.Millisecond, PerItem: 2 * time.Millisecond, Servers: 8},
			Outage: &faultyservice.Outage{After: outageAfter, For: outageFor, Way: way}}, true)
		if err != nil {
			return nil, err
		}
		flags := []string{"--chunk", "100"}
		if way == faultyservice.WayHang {
			flags = append(flags, "--request-timeout", "5s")
		}
		run, err := l.begin(ctx, outageEndpoint(way), outageItems, flags...)
		if err != nil {
			return nil, err
		}
		o.runs = append(o.runs, run)
	}
	return o, nil
}

func (o *outages) await(ctx context.Context, l *lab, t *table) error {
	says := map[faultyservice.Way]string{faultyservice.WayError: "each chunk fails",
		faultyservice.WaySlots: "each item fails, in a way that may pass",
		faultyservice.WayHang:  "nothing is answered (deadline 5 s)"}
	for i, way := range o.ways {
		if err := l.until(ctx, outageWithin, "run "+o.runs[i]+" completes", hasCompleted, o.runs[i]); err != nil {
			return fmt.Errorf("outage, %s: %w", way, err)
		}
		ledger, err := l.ledger(outageEndpoint(way), faultyservice.FaultOutage)
		if err != nil {
			return fmt.Errorf("outage, %s: %w", way, err)
		}
		before, back, after := outageRates(ledger.Entries())
		found, err := l.numbers(ctx, o.runs[i], countProbes, countFailed, countDone)
		if err != nil {
			return err
		}
		t.add(says[way], thousands(before), fmt.Sprint(ledger.Fired(faultyservice.FaultOutage)), thousands(found[0]),
			fmt.Sprintf("%.1f s", back), thousands(after), thousands(found[1]), thousands(outageItems-found[2]-found[1]))
	}
	fmt.Fprintf(os.Stderr, "misbehave outages are over\n")
	return nil
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

func measureMisbehaviour(ctx context.Context, l *lab, rep *report) error {
	poison := rep.table("poison in 5,000 items, chunks of 500", "extra slices", "a poison item", "at most",
		"seconds to isolate", "innocents lost")
	outage := rep.table("outage of 30 s", "items/s before", "chunks asked in vain", "of them probes", "back after its end",
		"items/s after", "items failed", "items lost")
	others := rep.table("the service", "items", "seconds", "failed", "lost or wrong", "note")
	o, err := beginOutages(ctx, l)
	if err != nil {
		return err
	}
	if err := measureIsolation(ctx, l, poison); err != nil {
		return err
	}
	for _, measure := range []func(context.Context, *lab) (otherCase, error){
		memoryKiller, throttled, slowInstance, liars,
	} {
		c, err := measure(ctx, l)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "misbehave %s\n", c.scenario)
		others.add(c.scenario, thousands(c.items), fmt.Sprintf("%.1f", c.seconds), thousands(c.failed), thousands(c.lost),
			c.note)
	}
	return o.await(ctx, l, outage)
}

const otherWithin = 90 * time.Second

func (l *lab) through(ctx context.Context, c *otherCase, endpoint string, n int, flags ...string) error {
	begun := time.Now()
	run, err := l.begin(ctx, endpoint, n, flags...)
	if err != nil {
		return err
	}
	return l.ended(ctx, run, begun, c)
}

func (l *lab) ended(ctx context.Context, run string, begun time.Time, c *otherCase) error {
	if err := l.until(ctx, otherWithin, "run "+run+" completes", hasCompleted, run); err != nil {
		return fmt.Errorf("%s: %w", c.scenario, err)
	}
	c.seconds = max(c.seconds, time.Since(begun).Seconds())
	found, err := l.numbers(ctx, run, countFailed, countItems, countRight)
	if err != nil {
		return err
	}
	c.items += found[1]
	c.failed += found[0]
	c.lost += found[1] - found[2] - found[0]
	return nil
}

const countItems = `SELECT items::float8 FROM batchrun WHERE id = $1`

// countRight counts correct results, which equal their payload.
const countRight = `SELECT count(*)::float8 FROM work_result p JOIN work_queue q USING (run_id, ordinal)
WHERE run_id = $1 AND convert_from(p.result, 'UTF8') = q.payload`

// memoryKiller fails on chunks of over 100 items. There are two runs: the second benefits from the first.
func memoryKiller(ctx context.Context, l *lab) (c otherCase, err error) {
	const endpoint, most = "memory", 100
	c.scenario = fmt.Sprintf("chunks over %d items fail", most)
	err = l.misbehave(faultyservice.Config{Endpoint: endpoint, Concurrency: 4,
		Memory: &faultyservice.Memory{Items: most, Way: faultyservice.WayError}}, true)
	if err != nil {
		return c, err
	}
	var fired [2]int
	for i := range fired {
		if err := l.through(ctx, &c, endpoint, 20_000); err != nil {
			return c, err
		}
		ledger, err := l.ledger(endpoint, faultyservice.FaultMemory)
		if err != nil {
			return c, err
		}
		fired[i] = ledger.Fired(faultyservice.FaultMemory)
	}
	limit, err := l.number(ctx, `SELECT coalesce(max(chunk_cap), 0)::float8 FROM endpoint_pace
		WHERE endpoint = $1`, endpoint)
	c.note = fmt.Sprintf("two runs; %d and then %d chunks were too big; chunks were limited to %.0f", fired[0],
		fired[1]-fired[0], limit)
	return c, err
}

// throttled limits its items per second.
func throttled(ctx context.Context, l *lab) (c otherCase, err error) {
	const endpoint, rate, n = "throttled", 2000, 16_000
	c.scenario = fmt.Sprintf("refuses over %s items/s", thousands(rate))
	err = l.misbehave(faultyservice.Config{Endpoint: endpoint, Concurrency: 16,
		Throttle: &faultyservice.Throttle{PerSecond: rate}}, true)
	if err != nil {
		return c, err
	}
	if err := l.through(ctx, &c, endpoint, n); err != nil {
		return c, err
	}
	ledger, err := l.ledger(endpoint, faultyservice.FaultThrottle)
	if err != nil {
		return c, err
	}
	executions := 0
	for _, e := range ledger.Entries() {
		executions += len(e.Ordinals)
	}
	c.note = fmt.Sprintf("%.1f s is possible; each item was asked %.2f times", float64(n)/rate-1, float64(executions)/n)
	return c, nil
}

// slowInstance is one instance fifty times slower than two others.
func slowInstance(ctx context.Context, l *lab) (c otherCase, err error) {
	const endpoint = "uneven"
	c.scenario = "one instance of three is 50 times slower"
	for _, d := range []time.Duration{time.Second, 20 * time.Millisecond, 20 * time.Millisecond} {
		err := l.misbehave(faultyservice.Config{Endpoint: endpoint, Load: &faultyservice.Load{PerChunk: d}}, false)
		if err != nil {
			return c, err
		}
	}
	err = l.through(ctx, &c, endpoint, 50_000, "--chunk", "50")
	c.note = fmt.Sprintf("%.1f s if all were quick", 50_000/50*0.020/6)
	return c, err
}

// liars send invalid replies, each of another kind, at the first attempt of each chunk.
func liars(ctx context.Context, l *lab) (c otherCase, err error) {
	lies := faultyservice.Lies()
	c.scenario = fmt.Sprintf("%d liars", len(lies))
	lying, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	errs := make([]error, len(lies))
	defer func() {
		stop()
		running.Wait()
		err = errors.Join(append(errs, err)...)
	}()
	begun := time.Now()
	runs := make([]string, len(lies))
	for i, lie := range lies {
		endpoint := fmt.Sprintf("liar-%d", i)
		liar, err := faultyservice.NewLiar(l.nc, faultyservice.LiarConfig{Endpoint: endpoint, Lie: lie})
		if err != nil {
			return c, err
		}
		running.Go(func() { errs[i] = liar.Run(lying) })
		if runs[i], err = l.begin(ctx, endpoint, 2000, "--request-timeout", "2s"); err != nil {
			return c, err
		}
	}
	for _, run := range runs {
		if err := l.ended(ctx, run, begun, &c); err != nil {
			return c, err
		}
	}
	quarantined, err := l.number(ctx, `SELECT count(*)::float8 FROM quarantine`)
	c.note = fmt.Sprintf("%.0f messages in quarantine", quarantined)
	return c, err
}
