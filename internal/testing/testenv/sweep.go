package testenv

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	dirPattern = "tranche-test-*"
	// sweepAge protects directories not locked yet by a new binary, or whose server is stopped for a moment. It exceeds
	// a binary's longest run.
	sweepAge = 30 * time.Minute
)

// sweep removes clusters of test binaries that were killed or timed out. The next sweep retries those that remain.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPattern))
	others, _ := filepath.Glob(filepath.Join(scratch(), dirPattern))
	for _, dir := range append(dirs, others...) {
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > sweepAge && !locked(dir) {
			_ = os.RemoveAll(dir)
		}
	}
}

// locked reports whether a process uses the directory, by the lock of package embedded.
func locked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return !os.IsNotExist(err)
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
