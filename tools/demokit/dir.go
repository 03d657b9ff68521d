package demokit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	serversDir = "servers" // what the servers keep; gone at the end
	logsDir    = "logs"
	lockFile   = ".lock"
)

// Dir is the directory of one story, its own alone while it is open.
type Dir struct {
	Path   string
	lock   *os.File
	leaves []string
}

// OpenDir makes the directory, or a fresh one of the story's name when path is empty. leaves are the files and
// directories that the story leaves there, beside its logs; those of one before are removed.
func OpenDir(path, name string, now time.Time, leaves ...string) (*Dir, error) {
	fresh := path == ""
	if fresh {
		parent, err := wire.DefaultDataDir()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(parent, name, now.Format("2006-01-02-150405"))
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("working directory (--dir): %w", err)
	}
	d, err := lockDir(path, leaves)
	var busy *BusyError
	if fresh && errors.As(err, &busy) { // begun in the same second
		return openDirBeside(path, leaves)
	}
	return d, err
}

func openDirBeside(path string, leaves []string) (*Dir, error) {
	beside, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+"-")
	if err != nil {
		return nil, fmt.Errorf("working directory: %w", err)
	}
	return lockDir(beside, leaves)
}

func lockDir(path string, leaves []string) (*Dir, error) {
	// PostgreSQL may run as another user, who has to pass through.
	if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("working directory (--dir): %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("working directory (--dir): %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &BusyError{Dir: path}
		}
		return nil, errors.Join(err, lock.Close())
	}
	d := &Dir{Path: path, lock: lock, leaves: leaves}
	if err := d.clear(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := os.MkdirAll(d.File(logsDir), 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("working directory: %w", err), lock.Close())
	}
	return d, nil
}

// File returns the path of something in the directory.
func (d *Dir) File(name ...string) string {
	return filepath.Join(append([]string{d.Path}, name...)...)
}

// Servers returns the path of something that is gone at the end.
func (d *Dir) Servers(name ...string) string { return d.File(append([]string{serversDir}, name...)...) }

// Log returns the path of the log of a child.
func (d *Dir) Log(name string) string { return d.File(logsDir, name+".log") }

// clear removes what a story before may have left: a killed one leaves its servers' data.
func (d *Dir) clear() error {
	for _, name := range append([]string{serversDir, logsDir}, d.leaves...) {
		if err := os.RemoveAll(d.File(name)); err != nil {
			return fmt.Errorf("clear the working directory: %w", err)
		}
	}
	return nil
}

// Close removes the servers' data and gives the directory free.
func (d *Dir) Close() error {
	return errors.Join(os.RemoveAll(d.File(serversDir)), syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN), d.lock.Close())
}
