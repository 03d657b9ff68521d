package testenv

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	dirPattern = "tranche-test-*"
	// sweepAge keeps a directory safe that another binary has just made and not locked yet, or whose server a test has
	// stopped for a moment. It is longer than a binary may run.
	sweepAge = 30 * time.Minute
)

// sweep removes the clusters of test binaries that were killed, or ended by a test's time-out. What cannot be removed
// is left to the next one.
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

// locked reports whether a process works in the directory. That one holds the lock that package embedded takes.
func locked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return !os.IsNotExist(err)
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
