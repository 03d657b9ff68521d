//go:build unix

package embedded

import (
	"os"
	"syscall"
)

const errTaken = syscall.EWOULDBLOCK

func lockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

func unlockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
