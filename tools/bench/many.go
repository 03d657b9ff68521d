package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

// many is the cost of thousands of small runs and a large one together, on nodes that share a machine.
type many struct {
	nodes   int
	alone   float64            // items per second of the large run alone
	beside  spread             // of its rate next to the small ones
	rate    float64            // small runs per second, from the first POST to the last event
	times   percentiles        // of a small run, from the POST to the event
	cpu     map[string]float64 // seconds while they ran, including the large run
	idle    float64            // cores used by nodes and PostgreSQL, before any run
	waiting float64            // the same while runs without services wait; 0: not measured
}

const (
	manySmall     = 10     // items of a small run
	manyWaiting   = 10_000 // runs whose endpoints have no service
	manyEndpoints = 200
	manyClients   = 64
	manyAlone     = 6 * time.Second // of measuring the large run alone
	manyLook      = 10 * time.Second
	manyLooks     = 5
	manySettle    = 5 * time.Second
	manyCost      = 3_000 // maximum of small runs for measuring CPU time
	manyWithin    = 10 * time.Minute
	manyTick      = time.Second
	beginWithin   = 30 * time.Second
	unserved      = "unserved"
)

func measureMany(ctx context.Context, cfg config, pg *cluster, rep *report) error {
	t := rep.table("nodes", "small runs/s", "p50, p99 ms", "large run, items/s: alone", "beside: median, least", "CPU s",
		"idle, of a core", "with runs that wait")
	for _, nodes := range []int{1, 2, 4} {
		err := withLab(ctx, cfg, pg, "many", func(l *lab) error {
			m := &many{nodes: nodes}
			if err := l.measureMany(ctx, cfg, m); err != nil {
				return err
			}
			waiting := "–"
			if m.waiting > 0 {
				waiting = fmt.Sprintf("%.1f%% (%s runs)", 100*m.waiting, thousands(manyWaiting))
			}
			t.add(fmt.Sprint(nodes), fmt.Sprintf("%.0f", m.rate),
				fmt.Sprintf("%d, %d", m.times.p50.Milliseconds(), m.times.p99.Milliseconds()), thousands(m.alone),
				thousands(m.beside.median)+", "+thousands(m.beside.low),
				fmt.Sprintf("nodes %.1f, postgres %.1f", m.cpu["nodes"], m.cpu["postgres"]),
				fmt.Sprintf("%.1f%%", 100*m.idle), waiting)
			return nil
		})
		if err != nil {
			return fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return nil
}

func (l *lab) measureMany(ctx context.Context, cfg config, m *many) (err error) {
	for range m.nodes - 1 {
		if err := l.another(ctx); err != nil {
			return err
		}
	}
	if err := l.startService(); err != nil {
		return err
	}
	small, err := l.serve("the small runs' service", manyArgument, l.nc.ConnectedUrl(), strconv.Itoa(manyEndpoints))
	if err != nil {
		return err
	}
	l.others = append(l.others, small)
	events, err := l.watchCompletions()
	if err != nil {
		return err
	}
	for i := range manyEndpoints { // warm up each endpoint
		if _, err := l.small(ctx, events, manyEndpoint(i)); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	if m.idle, err = l.cores(ctx, m.nodes); err != nil {
		return err
	}
	if err := l.cost(ctx, cfg, events, m.nodes); err != nil {
		return err
	}
	if err := l.besideLarge(ctx, cfg, events, m); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "many      %d nodes: large %.0f items/s alone, %.0f beside (least %.0f, %.0f%%); %.0f runs/s, "+
		"p50 %s, p99 %s; cpu %v\n", m.nodes, m.alone, m.beside.median, m.beside.low, 100*m.beside.low/m.alone, m.rate,
		m.times.p50.Round(time.Millisecond), m.times.p99.Round(time.Millisecond), m.cpu)
	if m.nodes > 1 {
		return nil
	}
	err = l.post(ctx, manyWaiting, func(ctx context.Context, i int) error {
		_, err := l.start(ctx, work{endpoint: fmt.Sprintf("%s-%03d", unserved, i%manyEndpoints)}, items{n: manySmall})
		return err
	})
	if err != nil {
		return err
	}
	m.waiting, err = l.cores(ctx, m.nodes)
	return err
}

// cost measures the CPU time of small runs alone, which hardly depends on other load of the machine.
func (l *lab) cost(ctx context.Context, cfg config, events *completions, nodes int) error {
	n := min(cfg.manyRuns, manyCost)
	before, begun := l.cpu(), time.Now()
	err := l.post(ctx, n, func(ctx context.Context, i int) error {
		_, err := l.small(ctx, events, manyEndpoint(i%manyEndpoints))
		return err
	})
	if err != nil {
		return err
	}
	rate, cost := float64(n)/time.Since(begun).Seconds(), l.cpu()
	var all float64
	for name, was := range before {
		cost[name] = (cost[name] - was) * 1000 / float64(n)
		all += cost[name]
	}
	fmt.Fprintf(os.Stderr, "many      %d nodes: small runs alone %.0f/s, %.2f ms of processor time each: nodes, with "+
		"nats-server, %.2f, postgres %.2f, services %.2f, bench %.2f\n", nodes, rate, all, cost["nodes"], cost["postgres"],
		cost["services"], cost["bench"])
	return nil
}

// besideLarge starts the large run, measures it alone, and then with the small runs.
func (l *lab) besideLarge(ctx context.Context, cfg config, events *completions, m *many) error {
	large, err := l.start(ctx, work{endpoint: echoEndpoint}, items{n: cfg.manyLarge})
	if err != nil {
		return err
	}
	if err := l.until(ctx, beginWithin, "the large run has begun", hasBegun, large.Run); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, manyTick); err != nil {
		return err
	}
	if m.alone, err = l.rate(ctx, large.Run, manyAlone); err != nil {
		return err
	}
	before, begun := l.cpu(), time.Now()
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	sampled := l.sampleRate(sampling, large.Run)
	var mu sync.Mutex
	var times []time.Duration
	var last time.Time
	err = l.post(ctx, cfg.manyRuns, func(ctx context.Context, i int) error {
		took, err := l.small(ctx, events, manyEndpoint(i%manyEndpoints))
		mu.Lock()
		defer mu.Unlock()
		times, last = append(times, took), time.Now()
		return err
	})
	m.cpu = l.cpu()
	for name, was := range before {
		m.cpu[name] -= was
	}
	stop()
	rates := <-sampled
	if err != nil {
		return err
	}
	done, err := l.number(ctx, countDone, large.Run)
	if err != nil {
		return err
	}
	if done >= float64(cfg.manyLarge) {
		return fmt.Errorf("the large run of %d items was over before the small ones; give -many-large", cfg.manyLarge)
	}
	if len(rates) == 0 {
		return errors.New("the small runs were over before a second had passed; give more of -many-runs")
	}
	m.rate, m.times = float64(cfg.manyRuns)/last.Sub(begun).Seconds(), percentilesOf(times)
	m.beside = spreadOf(rates)
	return l.cancel(ctx, large.Run)
}

func (l *lab) sampleRate(ctx context.Context, run string) <-chan []float64 {
	sampled := make(chan []float64, 1)
	go func() {
		var rates []float64
		for {
			rate, err := l.rate(context.WithoutCancel(ctx), run, manyTick) // cancelling a query would close the connection
			if err != nil || ctx.Err() != nil {
				sampled <- rates
				return
			}
			rates = append(rates, rate)
		}
	}()
	return sampled
}

// post runs n jobs with a bounded number of clients and returns the first error.
func (l *lab) post(ctx context.Context, n int, one func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, manyWithin, errors.New("the small runs take too long"))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	next := make(chan int)
	var clients sync.WaitGroup
	for range manyClients {
		clients.Go(func() {
			for i := range next {
				if err := one(ctx, i); err != nil {
					fail(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	clients.Wait()
	return context.Cause(ctx)
}

func (l *lab) small(ctx context.Context, events *completions, endpoint string) (time.Duration, error) {
	begun := time.Now()
	run, err := l.start(ctx, work{endpoint: endpoint}, items{n: manySmall})
	if err != nil {
		return 0, err
	}
	at, err := events.wait(ctx, run.Run)
	return at.Sub(begun), err
}

type completions struct {
	mu   sync.Mutex
	came map[string]chan time.Time
}

func (l *lab) watchCompletions() (*completions, error) {
	c := &completions{came: map[string]chan time.Time{}}
	err := onCompletion(l.nc, func(run string, at time.Time) {
		select {
		case c.of(run) <- at:
		default: // repeated
		}
	})
	return c, err
}

func (c *completions) of(run string) chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.came[run] == nil {
		c.came[run] = make(chan time.Time, 1)
	}
	return c.came[run]
}

func (c *completions) wait(ctx context.Context, run string) (at time.Time, err error) {
	select {
	case at = <-c.of(run):
	case <-ctx.Done():
		return at, fmt.Errorf("wait for run %s: %w", run, context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.came, run)
	return at, nil
}

// cpu returns the CPU seconds used so far by nodes, PostgreSQL, services and this program.
func (l *lab) cpu() map[string]float64 {
	used := map[string]float64{"nodes": processCPU(l.node.PID()), "bench": processCPU(os.Getpid()),
		"postgres": treeCPU(l.pg.PID())}
	for _, node := range l.nodes {
		used["nodes"] += processCPU(node.PID())
	}
	for _, c := range append(slices.Clone(l.others), l.service) {
		used["services"] += processCPU(c.PID())
	}
	return used
}

// cores returns the cores that idle nodes and PostgreSQL use, per node: a median, as autovacuum disturbs samples.
func (l *lab) cores(ctx context.Context, nodes int) (float64, error) {
	if err := backoff.Sleep(ctx, manySettle); err != nil {
		return 0, err
	}
	var looks []float64
	for range manyLooks {
		before, begun := l.cpu(), time.Now()
		if err := backoff.Sleep(ctx, manyLook); err != nil {
			return 0, err
		}
		after := l.cpu()
		used := after["nodes"] - before["nodes"] + after["postgres"] - before["postgres"]
		looks = append(looks, used/time.Since(begun).Seconds()/float64(nodes))
	}
	return spreadOf(looks).median, nil
}
