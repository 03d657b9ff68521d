package embedded

import (
	"os"
	"syscall"
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
