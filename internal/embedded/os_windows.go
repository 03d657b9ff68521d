package embedded

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// account is unused on Windows: a private PostgreSQL needs Unix.
type account struct {
	name     string
	uid, gid int
	switched bool
}

func serverAccount(string) (account, error) { return account{}, ErrNotOnWindows }

func userName(int) string { return "" }

func (account) give(string) error { return nil }

func (account) attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func (account) mayEnter(os.FileInfo) bool { return true }

func ownerOf(os.FileInfo) (uid int, ok bool) { return 0, false }

func kill(int, syscall.Signal) error { return syscall.EWINDOWS }

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

// ownGroup does nothing: Windows has no process groups that can be signaled.
func ownGroup(*exec.Cmd) {}

// signalGroup kills the command: Windows cannot ask it to end.
func signalGroup(cmd *exec.Cmd, _ syscall.Signal) {
	_ = cmd.Process.Kill() // it may have ended, which is fine
}
