package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

type machine struct {
	CPU        string
	Cores      int
	Memory     int64
	Kernel     string
	Go         string
	PostgreSQL string
	Fsync      time.Duration // median of an 8 KB write with fsync
	Date       string
	Load       string // one-minute load average before the measurement
}

func describeMachine(ctx context.Context, pg *cluster) machine {
	m := machine{
		CPU:    firstField("/proc/cpuinfo", "model name"),
		Cores:  runtime.NumCPU(),
		Go:     strings.TrimPrefix(runtime.Version(), "go"),
		Kernel: readLine("/proc/sys/kernel/osrelease"),
		Date:   time.Now().UTC().Format(time.DateOnly),
		Fsync:  probeFsync(pg.dir),
	}
	m.Load, _, _ = strings.Cut(readLine("/proc/loadavg"), " ")
	kib, _ := strconv.ParseInt(strings.TrimSuffix(firstField("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	m.Memory = kib << 10
	err := pg.admin.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&m.PostgreSQL)
	check(err, "read PostgreSQL's version")
	return m
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.0f GiB, Linux %s; PostgreSQL %s, Go %s; an fsync takes %s; "+
		"load average before we began: %s; %s", m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.PostgreSQL,
		m.Go, m.Fsync.Round(time.Microsecond), m.Load, m.Date)
}

func firstField(file, name string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func readLine(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(raw))
}

// fsyncProbes suffice for a median and take well under a second on an SSD.
const fsyncProbes = 200

// probeFsync returns the median time of appending a page to a file, as PostgreSQL does at a commit.
func probeFsync(dir string) time.Duration {
	f, err := os.CreateTemp(dir, "fsync-probe-") // removed with the directory
	check(err, "probe fsync")
	defer f.Close()
	page := make([]byte, 8<<10)
	took := make([]time.Duration, fsyncProbes)
	for i := range took {
		start := time.Now()
		_, err := f.WriteAt(page, 0)
		check(errors.Join(err, f.Sync()), "probe fsync")
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// ticks is USER_HZ, the unit of times in /proc: 100 on all Linux platforms of Go.
const ticks = 100

// procStat is a subset of /proc/<pid>/stat.
type procStat struct {
	parent int
	own    float64 // CPU seconds of the process
	reaped float64 // of its ended children
}

// readStat returns false if the process is gone.
func readStat(pid int) (procStat, bool) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, false
	}
	// The name in parentheses may contain anything; fields after it count from 3.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 15 {
		return procStat{}, false
	}
	number := func(field int) float64 {
		v, _ := strconv.ParseFloat(fields[field-3], 64) // the kernel writes only numbers here
		return v
	}
	return procStat{
		parent: int(number(4)),
		own:    (number(14) + number(15)) / ticks,
		reaped: (number(16) + number(17)) / ticks,
	}, true
}

// treeCPU returns the CPU seconds of a process and its children, including ended ones.
func treeCPU(root int) float64 {
	stat, _ := readStat(root)
	sum := stat.own + stat.reaped
	names, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		if child, ok := readStat(pid); ok && child.parent == root {
			sum += child.own
		}
	}
	return sum
}

// statusBytes returns a size in a process's status in bytes, or 0 if it is gone.
func statusBytes(pid int, name string) int64 {
	value := firstField(filepath.Join("/proc", strconv.Itoa(pid), "status"), name)
	kib, _ := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64) // 0 for "unknown"
	return kib << 10
}

type sample struct {
	Items      int
	Seconds    float64
	Intake     float64 // until the run had its items; 0 if not applicable
	Rate       float64
	WALPerItem float64
	CPU        map[string]float64 // by process; "postgres" is the whole cluster
	PeakRSS    int64              // of the node since its start; 0 without one
	PeakAnon   int64              // anonymous part of it
	PeakStore  int64              // files of JetStream
}

type processes map[string]int

type watch struct {
	pg    *cluster
	procs processes
	begun time.Time
	cpu   map[string]float64
	wal   int64
}

const walPosition = `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`

func (pg *cluster) startWatch(ctx context.Context, procs processes) *watch {
	w := &watch{pg: pg, procs: procs, wal: pg.walPosition(ctx)}
	w.cpu = w.readCPU()
	w.begun = time.Now()
	return w
}

func (w *watch) stop(ctx context.Context, n int) sample {
	s := sample{Items: n, Seconds: time.Since(w.begun).Seconds(), CPU: w.readCPU()}
	for name, before := range w.cpu {
		s.CPU[name] -= before
	}
	s.Rate = float64(n) / s.Seconds
	s.WALPerItem = float64(w.pg.walPosition(ctx)-w.wal) / float64(n)
	if node, ok := w.procs["node"]; ok {
		s.PeakRSS = statusBytes(node, "VmHWM")
	}
	return s
}

func (w *watch) readCPU() map[string]float64 {
	cpu := make(map[string]float64, len(w.procs)+1)
	for name, pid := range w.procs {
		stat, _ := readStat(pid)
		cpu[name] = stat.own
	}
	cpu["postgres"] = treeCPU(w.pg.PID())
	return cpu
}

func (pg *cluster) walPosition(ctx context.Context) (at int64) {
	check(pg.admin.QueryRow(ctx, walPosition).Scan(&at), "read the WAL position")
	return at
}

// peakTick is the interval for sampling peaks that the kernel does not record. A sample takes under a millisecond.
const peakTick = 200 * time.Millisecond

type peaks struct {
	end  chan struct{}
	done chan struct{}

	anon  int64 // bytes; read after done
	store int64
}

// watchPeaks samples a process's anonymous memory and a directory's size until stop is called.
func watchPeaks(pid int, dir string) *peaks {
	p := &peaks{end: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(peakTick)
		defer tick.Stop()
		for {
			p.anon = max(p.anon, statusBytes(pid, "RssAnon"))
			p.store = max(p.store, dirBytes(dir))
			select {
			case <-tick.C:
			case <-p.end:
				return
			}
		}
	}()
	return p
}

func (p *peaks) stop() (anon, store int64) {
	close(p.end)
	<-p.done
	return p.anon, p.store
}

// dirBytes sums the sizes of existing files; they may change concurrently.
func dirBytes(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // a removed file has no size
		}
		if info, err := entry.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
