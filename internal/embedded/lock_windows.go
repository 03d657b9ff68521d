package embedded

import (
	"os"

	"golang.org/x/sys/windows"
)

const errTaken = windows.ERROR_LOCK_VIOLATION

// locked is a byte far beyond the file's content, so that another process can still read the owner's PID.
var locked = windows.Overlapped{OffsetHigh: 1}

func lockFile(f *os.File) error {
	at := locked
	return windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
}

func unlockFile(f *os.File) error {
	at := locked
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &at)
}
