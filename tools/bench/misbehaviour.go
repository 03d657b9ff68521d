package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tranchehq/tranche/tools/faultyservice"
)

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
