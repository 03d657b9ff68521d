package testenv

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	memoryDir = "/dev/shm"
	// directoryVariable names another place.
	directoryVariable = "TRANCHE_TEST_DIR"
	// memoryFree is what must be free of it, and of the machine's memory: each test binary that runs has a cluster there.
	memoryFree = 4 << 30
)

// scratch is where data goes that no one needs after a crash: memory, if there is enough of it. A database is some
// hundred files, and a test makes one.
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

// available is how much memory programs can have, in bytes; 0: no one says.
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
