package embedded

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// DieWithParent makes the kernel signal the child when the thread that started it ends, as when this process is
// killed.
func DieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// syncsAll tells that syncTree syncs new files with one call, faster than a thousand syncs of initdb.
const syncsAll = true

func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
