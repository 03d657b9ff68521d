package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// machine names what the numbers were taken on.
type machine struct {
	CPU        string        `json:"cpu"`
	Cores      int           `json:"cores"`
	Memory     int64         `json:"memory_bytes"`
	Kernel     string        `json:"kernel"`
	Go         string        `json:"go"`
	PostgreSQL string        `json:"postgresql"`
	Fsync      time.Duration `json:"fsync_ns"` // the median of one 8 KB write and its fsync
	Date       string        `json:"date"`
	Load       string        `json:"load"` // the load average over a minute, before we began
}

func describeMachine(ctx context.Context, pg *cluster) (machine, error) {
	m := machine{
		CPU:    firstField("/proc/cpuinfo", "model name"),
		Cores:  runtime.NumCPU(),
		Go:     strings.TrimPrefix(runtime.Version(), "go"),
		Kernel: readLine("/proc/sys/kernel/osrelease"),
		Load:   oneMinute(readLine("/proc/loadavg")),
		Date:   time.Now().UTC().Format(time.DateOnly),
	}
	kib, _ := strconv.ParseInt(strings.TrimSuffix(firstField("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	m.Memory = kib << 10
	if err := pg.admin.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&m.PostgreSQL); err != nil {
		return m, fmt.Errorf("read PostgreSQL's version: %w", err)
	}
	var err error
	m.Fsync, err = probeFsync(pg.dir)
	return m, err
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.0f GiB, Linux %s; PostgreSQL %s, Go %s; an fsync takes %s; "+
		"load average before we began: %s; %s", m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.PostgreSQL,
		m.Go, m.Fsync.Round(time.Microsecond), m.Load, m.Date)
}

func oneMinute(loadavg string) string {
	first, _, _ := strings.Cut(loadavg, " ")
	return first
}

// firstField returns the value of the first "name : value" line, "unknown" where there is none.
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

// fsyncProbes is enough for a median and takes well under a second on an SSD.
const fsyncProbes = 200

// probeFsync appends pages to a file in dir, as PostgreSQL does at a commit.
func probeFsync(dir string) (median time.Duration, err error) {
	path := filepath.Join(dir, "fsync-probe")
	f, err := os.Create(path)
	if err != nil {
		return 0, fmt.Errorf("probe fsync: %w", err)
	}
	defer func() {
		f.Close() // it is removed next
		err = errors.Join(err, os.Remove(path))
	}()
	page := make([]byte, 8<<10)
	took := make([]time.Duration, fsyncProbes)
	for i := range took {
		start := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return 0, fmt.Errorf("probe fsync: %w", err)
		}
		if err := f.Sync(); err != nil {
			return 0, fmt.Errorf("probe fsync: %w", err)
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
