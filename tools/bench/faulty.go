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

// isolation is what it took to find the items that fail every chunk they are in.
type isolation struct {
	Scenario string  `json:"scenario"`
	Items    int     `json:"items"`
	Chunk    int     `json:"chunk"`
	Poison   int     `json:"poison_items"`
	Extra    float64 `json:"extra_slices"`
	Bound    int     `json:"bound_of_extra_slices"`
	Seconds  float64 `json:"seconds_to_isolate"` // from the first failure to the last
	Lost     float64 `json:"innocents_not_done"`
	Fired    int     `json:"chunks_failed"`
}

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
		{"1, by an error for good", "poison-refuse", []int{77}, faultyservice.WayRefuse},
		{"1, by a panic", "poison-panic", []int{4999}, faultyservice.WayPanic},
		{"1, by hanging for 1 s", "poison-hang", []int{2500}, faultyservice.WayHang},
	}
}

// measureIsolation has a run for each case, all at the same time, with default settings.
func measureIsolation(ctx context.Context, l *lab, rep *report) error {
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
		found, err := l.isolated(ctx, c, runs[i])
		if err != nil {
			return fmt.Errorf("poison: %s: %w", c.name, err)
		}
		rep.Isolation = append(rep.Isolation, found)
	}
	fmt.Fprintf(os.Stderr, "misbehave poison is isolated\n")
	return nil
}

func (l *lab) isolated(ctx context.Context, c poisonCase, run string) (found isolation, err error) {
	if err := l.until(ctx, isolateWithin, "run "+run+" completes", hasCompleted, run); err != nil {
		return found, err
	}
	ledger, err := l.ledger(c.endpoint)
	if err != nil {
		return found, err
	}
	found = isolation{Scenario: c.name, Items: poisonItems, Chunk: poisonChunk, Poison: len(c.ordinals),
		Bound: len(c.ordinals) * (2*bits.Len(poisonChunk-1) + poisonAttempts), Fired: ledger.Fired(faultyservice.FaultPoison)}
	if found.Fired == 0 {
		return found, fmt.Errorf("the fault did not fire")
	}
	if found.Extra, err = l.number(ctx, countExtra, run); err != nil {
		return found, err
	}
	if found.Seconds, err = l.number(ctx, timeFailed, run); err != nil {
		return found, err
	}
	done, err := l.number(ctx, countDone, run)
	found.Lost = float64(poisonItems-len(c.ordinals)) - done
	return found, err
}

func (r *report) isolations() *table {
	t := &table{heading: []string{
		"poison in 5,000 items, chunks of 500", "extra slices", "a poison item", "at most", "seconds to isolate", "innocents lost",
	}}
	for _, i := range r.Isolation {
		t.add(i.Scenario, thousands(i.Extra), fmt.Sprintf("%.1f", i.Extra/float64(i.Poison)), fmt.Sprint(i.Bound/i.Poison),
			fmt.Sprintf("%.1f", i.Seconds), thousands(i.Lost))
	}
	return t
}

// outageCase is a service that does nothing for a while in the middle of a run.
type outageCase struct {
	Way    string  `json:"way"`
	Lasts  float64 `json:"seconds"`
	Before float64 `json:"items_per_second_before"`
	InVain int     `json:"chunks_asked_in_vain"`
	Probes float64 `json:"probes"`
	Back   float64 `json:"seconds_until_back"` // from the end of the outage to the first chunk that was answered
	After  float64 `json:"items_per_second_after"`
	Failed float64 `json:"failed"`
	Lost   float64 `json:"lost"`
}

const (
	outageItems  = 40_000
	outageAfter  = 12_000
	outageFor    = 30 * time.Second
	outageWithin = 3 * time.Minute

	countProbes = `SELECT count(*)::float8 FROM work_slice WHERE run_id = $1 AND cause = 'probe'`
)

// outages are the runs that were started.
type outages struct {
	ways []faultyservice.Way
	runs []string
}

func outageEndpoint(way faultyservice.Way) string { return "outage-" + string(way) }

// beginOutages starts a run for each way, all at the same time, with default settings but for the chunks, which are
// small enough for a rate to show, and for the deadline of those that are never answered.
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
			flags = append(flags, "--slice-timeout", "5s")
		}
		run, err := l.begin(ctx, outageEndpoint(way), outageItems, flags...)
		if err != nil {
			return nil, err
		}
		o.runs = append(o.runs, run)
	}
	return o, nil
}

// await waits for the runs' ends and says what became of them.
func (o *outages) await(ctx context.Context, l *lab, rep *report) error {
	for i, way := range o.ways {
		if err := l.until(ctx, outageWithin, "run "+o.runs[i]+" completes", hasCompleted, o.runs[i]); err != nil {
			return fmt.Errorf("outage, %s: %w", way, err)
		}
		ledger, err := l.ledger(outageEndpoint(way))
		if err != nil {
			return err
		}
		c := outageCase{Way: string(way), Lasts: outageFor.Seconds(), InVain: ledger.Fired(faultyservice.FaultOutage)}
		if c.InVain == 0 {
			return fmt.Errorf("outage, %s: the fault did not fire", way)
		}
		c.read(ledger.Entries())
		if err := c.count(ctx, l, o.runs[i]); err != nil {
			return err
		}
		rep.Outages = append(rep.Outages, c)
	}
	fmt.Fprintf(os.Stderr, "misbehave outages are over\n")
	return nil
}

// read finds the rates in what the service has noted. An entry is written when a chunk begins.
func (c *outageCase) read(entries []faultyservice.Entry) {
	var down, up, last time.Time // the first chunk in vain, the first that is answered after it, the last one
	before, after := 0, 0
	for _, e := range entries {
		switch {
		case e.Fault == faultyservice.FaultOutage:
			if down.IsZero() {
				down = e.At
			}
		case down.IsZero():
			before += len(e.Ordinals)
		default:
			if up.IsZero() {
				up = e.At
			}
			after += len(e.Ordinals)
			last = e.At
		}
	}
	c.Before = float64(before) / down.Sub(entries[0].At).Seconds()
	c.Back = up.Sub(down.Add(outageFor)).Seconds()
	c.After = float64(after) / last.Sub(up).Seconds()
}

func (c *outageCase) count(ctx context.Context, l *lab, run string) (err error) {
	if c.Probes, err = l.number(ctx, countProbes, run); err != nil {
		return err
	}
	if c.Failed, err = l.number(ctx, countFailed, run); err != nil {
		return err
	}
	done, err := l.number(ctx, countDone, run)
	c.Lost = outageItems - done - c.Failed
	return err
}

func (r *report) outages() *table {
	t := &table{heading: []string{
		"outage of 30 s", "items/s before", "chunks asked in vain", "of them probes", "back after its end", "items/s after",
		"items failed", "items lost",
	}}
	says := map[string]string{"error": "each chunk fails", "slots": "each item fails, in a way that may pass",
		"hang": "nothing is answered (deadline 5 s)"}
	for _, o := range r.Outages {
		t.add(says[o.Way], thousands(o.Before), fmt.Sprint(o.InVain), thousands(o.Probes), fmt.Sprintf("%.1f s", o.Back),
			thousands(o.After), thousands(o.Failed), thousands(o.Lost))
	}
	return t
}

// otherCase is a service that misbehaves in another way.
type otherCase struct {
	Scenario string  `json:"scenario"`
	Items    float64 `json:"items"`
	Seconds  float64 `json:"seconds"`
	Failed   float64 `json:"failed"`
	Lost     float64 `json:"lost"`
	Note     string  `json:"note"`
}

// measureMisbehaviour runs everything beside the outages, whose time passes anyway.
func measureMisbehaviour(ctx context.Context, l *lab, rep *report) error {
	o, err := beginOutages(ctx, l)
	if err != nil {
		return err
	}
	if err := measureIsolation(ctx, l, rep); err != nil {
		return err
	}
	for _, measure := range []func(context.Context, *lab) (otherCase, error){
		memoryKiller, throttled, slowInstance, liars,
	} {
		c, err := measure(ctx, l)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "misbehave %s\n", c.Scenario)
		rep.Others = append(rep.Others, c)
	}
	return o.await(ctx, l, rep)
}

const otherWithin = 90 * time.Second

// ended waits for a run and counts what became of its items.
func (l *lab) ended(ctx context.Context, run string, begun time.Time, c *otherCase) error {
	if err := l.until(ctx, otherWithin, "run "+run+" completes", hasCompleted, run); err != nil {
		return fmt.Errorf("%s: %w", c.Scenario, err)
	}
	c.Seconds = max(c.Seconds, time.Since(begun).Seconds())
	failed, err := l.number(ctx, countFailed, run)
	if err != nil {
		return err
	}
	items, err := l.number(ctx, `SELECT items::float8 FROM batchrun WHERE id = $1`, run)
	if err != nil {
		return err
	}
	done, err := l.number(ctx, countRight, run)
	c.Items += items
	c.Failed += failed
	c.Lost += items - done - failed
	return err
}

// countRight counts the items that have the right result, which is their payload.
const countRight = `SELECT count(*)::float8 FROM work_part p JOIN work_queue q USING (run_id, ordinal)
WHERE run_id = $1 AND convert_from(p.result, 'UTF8') = q.payload`

// memoryKiller is a service that fails on chunks of over 100 items. Two runs: what the first taught helps the second.
func memoryKiller(ctx context.Context, l *lab) (c otherCase, err error) {
	const endpoint, most = "memory", 100
	c.Scenario = fmt.Sprintf("chunks over %d items fail", most)
	err = l.misbehave(faultyservice.Config{Endpoint: endpoint, Concurrency: 4,
		Memory: &faultyservice.Memory{Items: most, Way: faultyservice.WayError}}, true)
	if err != nil {
		return c, err
	}
	var fired [2]int
	for i := range fired {
		begun := time.Now()
		run, err := l.begin(ctx, endpoint, 20_000)
		if err != nil {
			return c, err
		}
		if err := l.ended(ctx, run, begun, &c); err != nil {
			return c, err
		}
		ledger, err := l.ledger(endpoint)
		if err != nil {
			return c, err
		}
		fired[i] = ledger.Fired(faultyservice.FaultMemory)
	}
	limit, err := l.number(ctx, `SELECT coalesce(max(chunk_cap), 0)::float8 FROM endpoint_pace WHERE endpoint = $1`, endpoint)
	c.Note = fmt.Sprintf("two runs; %d and then %d chunks were too big; chunks were limited to %.0f", fired[0],
		fired[1]-fired[0], limit)
	return c, err
}

// throttled is a service that takes so many items a second.
func throttled(ctx context.Context, l *lab) (c otherCase, err error) {
	const endpoint, rate, n = "throttled", 2000, 16_000
	c.Scenario = fmt.Sprintf("refuses over %s items/s", thousands(rate))
	err = l.misbehave(faultyservice.Config{Endpoint: endpoint, Concurrency: 16,
		Throttle: &faultyservice.Throttle{PerSecond: rate}}, true)
	if err != nil {
		return c, err
	}
	begun := time.Now()
	run, err := l.begin(ctx, endpoint, n)
	if err != nil {
		return c, err
	}
	if err := l.ended(ctx, run, begun, &c); err != nil {
		return c, err
	}
	ledger, err := l.ledger(endpoint)
	if err != nil {
		return c, err
	}
	executions := 0
	for _, e := range ledger.Entries() {
		executions += len(e.Ordinals)
	}
	c.Note = fmt.Sprintf("%.1f s is possible; each item was asked %.2f times", float64(n)/rate-1, float64(executions)/n)
	return c, nil
}

// slowInstance is one that takes fifty times as long as two others.
func slowInstance(ctx context.Context, l *lab) (c otherCase, err error) {
	const endpoint = "uneven"
	c.Scenario = "one instance of three is 50 times slower"
	for _, d := range []time.Duration{time.Second, 20 * time.Millisecond, 20 * time.Millisecond} {
		err := l.misbehave(faultyservice.Config{Endpoint: endpoint, Load: &faultyservice.Load{PerChunk: d}}, false)
		if err != nil {
			return c, err
		}
	}
	begun := time.Now()
	run, err := l.begin(ctx, endpoint, 50_000, "--chunk", "50")
	if err != nil {
		return c, err
	}
	err = l.ended(ctx, run, begun, &c)
	c.Note = fmt.Sprintf("%.1f s if all were quick", 50_000/50*0.020/6)
	return c, err
}

// liars answer what does not fit, each in a way of its own, at the first attempt of each chunk.
func liars(ctx context.Context, l *lab) (c otherCase, err error) {
	lies := faultyservice.Lies()
	c.Scenario = fmt.Sprintf("%d liars", len(lies))
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
		if runs[i], err = l.begin(ctx, endpoint, 2000, "--slice-timeout", "2s"); err != nil {
			return c, err
		}
	}
	for _, run := range runs {
		if err := l.ended(ctx, run, begun, &c); err != nil {
			return c, err
		}
	}
	quarantined, err := l.number(ctx, `SELECT count(*)::float8 FROM quarantine`)
	c.Note = fmt.Sprintf("%.0f messages in quarantine", quarantined)
	return c, err
}

func (r *report) others() *table {
	t := &table{heading: []string{"the service", "items", "seconds", "failed", "lost or wrong", "note"}}
	for _, c := range r.Others {
		t.add(c.Scenario, thousands(c.Items), fmt.Sprintf("%.1f", c.Seconds), thousands(c.Failed), thousands(c.Lost), c.Note)
	}
	return t
}
