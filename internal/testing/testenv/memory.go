package testenv

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	memoryDir         = "/dev/shm"
	directoryVariable = "TRANCHE_TEST_DIR"
	// memoryFree is the minimum free space there, and free memory: each running test binary has a cluster there.
	memoryFree = 4 << 30
)

// scratch is the directory for data not needed after a crash, in memory if there is enough.
func scratch() string {
	if dir := os.Getenv(directoryVariable); dir != "" {
		return dir
	}
	var fs syscall.Statfs_t
	if syscall.Statfs(memoryDir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryFree || available() < memoryFree {
		return os.TempDir()
	}
	return memoryDir
}

// available returns the memory available to programs, in bytes; 0: unknown.
func available() uint64 {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kb, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			return kb << 10
		}
	}
	return 0
}
