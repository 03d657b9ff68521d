package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bench/scale"
)

// What the costs are calculated from: the same run with small chunks, and with large payloads.
const (
	scaleChunk  = 500
	scaleSmall  = 50
	scalePad    = 1000
	scaleFlight = 64
	scalePlain  = 81 // bytes of a payload without padding
	scaleTrips  = 2000
	// scaleSettle is more than it takes backends to tell their statistics.
	scaleSettle = 1500 * time.Millisecond
)

// scaleSample is what a run took, by the item: processor time in µs, else bytes. The first phase is its intake.
type scaleSample struct {
	phases  [2]map[string]float64
	seconds float64
	intake  float64
	flushes float64 // of the WAL, in all
	used    float64 // processor seconds of all that is Tranche's
}

const (
	databaseSize = `SELECT pg_database_size(current_database())::float8`
	walFlushes   = `SELECT wal_sync::float8 FROM pg_stat_wal`
)

// meters reads everything that grows.
func (s *scaleBed) meters(ctx context.Context, db *pgx.Conn) (map[string]float64, error) {
	m := map[string]float64{"postgres": treeCPU(s.pg.master) / micro, "node": processCPU(s.node.pid()) / micro,
		"nats": processCPU(s.nats.pid()) / micro, "service": processCPU(s.service.pid()) / micro}
	wal, err := s.pg.walPosition(ctx)
	if err != nil {
		return nil, err
	}
	m["wal"] = float64(wal)
	if m["wire"], err = s.wireBytes(ctx); err != nil {
		return nil, err
	}
	var size float64
	if err := db.QueryRow(ctx, databaseSize).Scan(&size); err != nil {
		return nil, fmt.Errorf("read the size of the database: %w", err)
	}
	m["disk"] = size
	return m, nil
}

const micro = 1e-6

// flushes is how often the WAL was flushed, since ever. PostgreSQL 18 counts it elsewhere.
func flushes(ctx context.Context, db *pgx.Conn) float64 {
	var n float64
	if db.QueryRow(ctx, walFlushes).Scan(&n) != nil {
		return math.NaN()
	}
	return n
}

// take sends a run through the bed, and reads the meters at its beginning, when it is loaded, and at its end.
func (s *scaleBed) take(ctx context.Context, of work, input items) (sample scaleSample, err error) {
	db, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return sample, fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	var at [3]map[string]float64
	if at[0], err = s.meters(ctx, db); err != nil {
		return sample, err
	}
	before, begun := flushes(ctx, db), time.Now()
	ctx, cancel := context.WithTimeout(ctx, scaleWithin)
	defer cancel()
	run, err := s.start(ctx, of, input)
	if err != nil {
		return sample, err
	}
	loaded := time.Now()
	if at[1], err = s.meters(ctx, db); err != nil {
		return sample, err
	}
	done, err := s.completion(ctx, run.Run)
	if err != nil {
		return sample, err
	}
	if at[2], err = s.meters(ctx, db); err != nil {
		return sample, err
	}
	sample.seconds, sample.intake = done.at.Sub(begun).Seconds(), loaded.Sub(begun).Seconds()
	for phase := range sample.phases {
		sample.phases[phase] = map[string]float64{}
		for name, now := range at[phase+1] {
			sample.phases[phase][name] = (now - at[phase][name]) / float64(input.n)
		}
	}
	for _, name := range []string{"postgres", "node", "nats", "service"} {
		sample.used += (at[2][name] - at[0][name]) * micro
	}
	if err := rest(ctx, scaleSettle); err != nil {
		return sample, err
	}
	sample.flushes = flushes(ctx, db) - before
	if _, err := db.Exec(ctx, "ANALYZE"); err != nil { // else the check below may look at each part for each item
		return sample, fmt.Errorf("analyze: %w", err)
	}
	return sample, s.check(ctx, run.Run, input.n)
}

// scaleWithin is more than any run of the part takes.
const scaleWithin = 10 * time.Minute

// scaleItems are enough for a few seconds each.
func scaleItems(cfg config) int { return max(cfg.items/5, 4*scaleChunk) }

// measureCosts calculates what items, bytes and chunks take from three runs.
func measureCosts(ctx context.Context, cfg config, pg *cluster, host machine) (c scale.Costs, err error) {
	b, err := openScaleBed(ctx, cfg, pg, "scale", 0)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	var runs [3]scaleSample
	n := scaleItems(cfg)
	for i, of := range []struct{ n, chunk, pad int }{
		{n, scaleChunk, 0}, {n, scaleSmall, 0}, {n / 4, scaleChunk, scalePad},
	} {
		runs[i], err = b.take(ctx, work{endpoint: echoEndpoint, chunk: of.chunk, flight: scaleFlight},
			items{n: of.n, pad: of.pad})
		if err != nil {
			return c, fmt.Errorf("items in chunks of %d, with %d bytes more: %w", of.chunk, of.pad, err)
		}
		fmt.Fprintf(os.Stderr, "scale     %d items, chunks of %d, %d bytes more: %.2f s, %.0f flushes; "+
			"µs and bytes an item: intake %v, then %v\n", of.n, of.chunk, of.pad, runs[i].seconds, runs[i].flushes, runs[i].phases[0],
			runs[i].phases[1])
	}
	fit := func(phase int, name string) scale.Cost { return fitCost(runs, phase, name) }
	c = scale.Costs{
		Measured:       host.String(),
		DatabaseIntake: fit(0, "postgres"), DatabaseWork: fit(1, "postgres"),
		NodeIntake: fit(0, "node"), NodeWork: fit(1, "node"),
		NATSWork: fit(1, "nats"), ServiceWork: fit(1, "service"), WALIntake: fit(0, "wal"), WALWork: fit(1, "wal"),
		DiskIntake: fit(0, "disk"), DiskWork: fit(1, "disk"), Wire: fit(1, "wire"),
	}
	c.Trip, err = b.trip(ctx)
	return c, err
}

// fitCost solves for what an item, a byte and a chunk take. What comes out as less than nothing, by noise, is nothing.
func fitCost(runs [3]scaleSample, phase int, name string) scale.Cost {
	plain, small, large := runs[0].phases[phase][name], runs[1].phases[phase][name], runs[2].phases[phase][name]
	c := scale.Cost{Byte: max(0, (large-plain)/scalePad)}
	if phase == 1 {
		c.Chunk = max(0, (small-plain)/(1.0/scaleSmall-1.0/scaleChunk))
	} else {
		plain = (plain + small) / 2 // a load knows no chunks
	}
	c.Item = max(0, plain-c.Byte*scalePlain-c.Chunk/scaleChunk)
	return c
}

// trip is what a round trip takes on this machine, in µs: the median of many.
func (s *scaleBed) trip(ctx context.Context) (us float64, err error) {
	db, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return 0, fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	took := make([]time.Duration, scaleTrips)
	for i := range took {
		begun := time.Now()
		if _, err := db.Exec(ctx, "SELECT"); err != nil {
			return 0, fmt.Errorf("measure a round trip: %w", err)
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return float64(took[scaleTrips/2].Nanoseconds()) / 1000, nil
}
