package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/tranchehq/tranche/bench/scale"
)

// scaleCheck is a run on this machine, beside what the simulation says of it.
type scaleCheck struct {
	Name      string  `json:"name"`
	Items     int     `json:"items"`
	Measured  float64 `json:"measured_seconds"`
	Simulated float64 `json:"simulated_seconds"`
	Used      float64 `json:"measured_processor_seconds"`
	Flushes   float64 `json:"measured_flushes"`
	Expected  float64 `json:"simulated_flushes"`
	Limit     string  `json:"limit"`
}

func (c *scaleCheck) wrong() float64 { return c.Simulated/c.Measured - 1 }

// checkOf is how a check is set up. None of them is what the costs were calculated from.
type checkOf struct {
	name  string
	items int
	chunk int
	pad   int
	delay time.Duration // of each flush of the WAL, in which whoever comes meanwhile is, too
	away  time.Duration // a round trip to the database
}

func scaleChecks(n int) []checkOf {
	return []checkOf{
		{name: "twice as many items, chunks of 500", items: 2 * n, chunk: 500},
		{name: "chunks of 100, 500 bytes more an item", items: n / 2, chunk: 100, pad: 500},
		{name: "flushes that take 20 ms", items: n / 2, chunk: 500, delay: 20 * time.Millisecond},
		{name: "flushes that take 50 ms, chunks of 100", items: n / 4, chunk: 100, delay: 50 * time.Millisecond},
		{name: "a database 5 ms away", items: n / 2, chunk: 500, away: 5 * time.Millisecond},
		{name: "a database 10 ms away, chunks of 100", items: n / 4, chunk: 100, away: 10 * time.Millisecond},
	}
}

func checkScale(ctx context.Context, cfg config, pg *cluster, costs scale.Costs, fsync time.Duration,
) (all []scaleCheck, err error) {
	for _, of := range scaleChecks(scaleItems(cfg)) {
		c, err := checkOne(ctx, cfg, pg, costs, fsync, of)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", of.name, err)
		}
		fmt.Fprintf(os.Stderr, "scale     %s: %.2f s, simulated %.2f (%+.0f%%), by %s\n", c.Name, c.Measured, c.Simulated,
			100*c.wrong(), c.Limit)
		all = append(all, *c)
	}
	return all, nil
}

func checkOne(ctx context.Context, cfg config, pg *cluster, costs scale.Costs, fsync time.Duration, of checkOf,
) (c *scaleCheck, err error) {
	site := scale.Site{Databases: 1, Nodes: 1, OneMachine: float64(runtime.NumCPU()), Connections: 100, Disk: 1000,
		Network: 1000, Replicas: 1, Fsync: ms(fsync + of.delay), Late: of.delay > 0, Trip: ms(of.away)}
	job := scale.Job{Items: of.items, Steps: 1, Chunk: of.chunk, InFlight: scaleFlight,
		Bytes: float64(scalePlain + of.pad)}
	r, err := scale.Simulate(costs, site, job, 1)
	if err != nil {
		return nil, err
	}
	b, err := openScaleBed(ctx, cfg, pg, "scale", of.away)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := pg.delayCommits(ctx, of.delay); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pg.delayCommits(ctx, 0)) }()
	requests := work{endpoint: echoEndpoint, chunk: of.chunk, flight: scaleFlight}
	s, err := b.take(ctx, requests, items{n: of.items, pad: of.pad})
	return &scaleCheck{Name: of.name, Items: of.items, Measured: s.seconds, Simulated: r.Seconds, Used: s.used,
		Flushes: s.flushes, Expected: r.Flushes * r.Seconds, Limit: r.Limit()}, err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// delayCommits has PostgreSQL wait before each flush of its WAL: a slow disk.
func (pg *cluster) delayCommits(ctx context.Context, by time.Duration) error {
	for _, sql := range []string{"ALTER SYSTEM SET commit_siblings = 0",
		"ALTER SYSTEM SET commit_delay = " + strconv.FormatInt(by.Microseconds(), 10), "SELECT pg_reload_conf()"} {
		if _, err := pg.admin.Exec(context.WithoutCancel(ctx), sql); err != nil {
			return fmt.Errorf("have PostgreSQL delay commits: %w", err)
		}
	}
	return nil
}
