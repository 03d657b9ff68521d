package main

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// sample is one measurement of one contestant.
type sample struct {
	Items      int                `json:"items"`
	Seconds    float64            `json:"seconds"`
	Intake     float64            `json:"intake_seconds"` // until the run had its items; 0 where that is no stage
	Rate       float64            `json:"items_per_second"`
	WALPerItem float64            `json:"wal_bytes_per_item"`
	CPU        map[string]float64 `json:"cpu_seconds"`          // by process; "postgres" is all of the cluster
	PeakRSS    int64              `json:"node_peak_rss_bytes"`  // of the node since its start; 0 where there is none
	PeakAnon   int64              `json:"node_peak_anon_bytes"` // the part of it that is no file's
	PeakStore  int64              `json:"jetstream_peak_bytes"` // files of JetStream
}

// processes are the process ids that a sample watches, by name.
type processes map[string]int

// watch is a sample in the making.
type watch struct {
	pg    *cluster
	procs processes
	begun time.Time
	cpu   map[string]float64
	wal   int64
}

const walPosition = `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`

// startWatch notes where everything stands and starts the clock.
func (pg *cluster) startWatch(ctx context.Context, procs processes) (*watch, error) {
	w := &watch{pg: pg, procs: procs}
	var err error
	if w.wal, err = pg.walPosition(ctx); err != nil {
		return nil, err
	}
	w.cpu = w.readCPU()
	w.begun = time.Now()
	return w, nil
}

// stop stops the clock: n items are through.
func (w *watch) stop(ctx context.Context, n int) (sample, error) {
	s := sample{Items: n, Seconds: time.Since(w.begun).Seconds(), CPU: w.readCPU()}
	for name, before := range w.cpu {
		s.CPU[name] -= before
	}
	s.Rate = float64(n) / s.Seconds
	wal, err := w.pg.walPosition(ctx)
	if err != nil {
		return s, err
	}
	s.WALPerItem = float64(wal-w.wal) / float64(n)
	if node, ok := w.procs["node"]; ok {
		s.PeakRSS = peakRSS(node)
	}
	return s, nil
}

func (w *watch) readCPU() map[string]float64 {
	cpu := make(map[string]float64, len(w.procs)+1)
	for name, pid := range maps.All(w.procs) {
		cpu[name] = processCPU(pid)
	}
	if w.pg.master != 0 {
		cpu["postgres"] = treeCPU(w.pg.master)
	}
	return cpu
}

func (pg *cluster) walPosition(ctx context.Context) (at int64, err error) {
	if err := pg.admin.QueryRow(ctx, walPosition).Scan(&at); err != nil {
		return 0, fmt.Errorf("read the WAL position: %w", err)
	}
	return at, nil
}
