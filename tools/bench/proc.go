package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ticks is the unit of the times in /proc: USER_HZ, which is 100 on every Linux platform that Go knows.
const ticks = 100

// procStat is what we read of /proc/<pid>/stat.
type procStat struct {
	parent int
	own    float64 // CPU seconds of the process
	reaped float64 // of its children that ended
}

// readStat returns false for a process that is gone, or of another machine.
func readStat(pid int) (procStat, bool) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, false
	}
	// The name in brackets may hold anything; the fields after it count from 3.
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

// processCPU returns the CPU seconds that a process has used, 0 when it is gone.
func processCPU(pid int) float64 {
	stat, _ := readStat(pid)
	return stat.own
}

// treeCPU returns the CPU seconds of a process, of its children, and of the children that ended.
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

// postmaster returns the parent of a backend, 0 when the backend is not a process of this machine.
func postmaster(backend uint32) int {
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(int(backend)), "comm"))
	if err != nil || strings.TrimSpace(string(name)) != "postgres" {
		return 0
	}
	stat, _ := readStat(int(backend))
	return stat.parent
}

// peakRSS returns the most memory that a process ever had resident, in bytes, 0 when it is gone.
func peakRSS(pid int) int64 { return statusBytes(pid, "VmHWM") }

// statusBytes returns a size in /proc/<pid>/status, 0 where there is none.
func statusBytes(pid int, name string) int64 {
	value := firstField(filepath.Join("/proc", strconv.Itoa(pid), "status"), name)
	kib, _ := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64) // 0 for "unknown"
	return kib << 10
}
