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
	serversDir = "servers" // the servers' data, removed at the end
	logsDir    = "logs"
	lockFile   = ".lock"
)

// Dir is the directory of a story, exclusive while open.
type Dir struct {
	Path   string
	lock   *os.File
	leaves []string
}

// OpenDir creates the directory, or a new one under name if path is empty. leaves are the files and directories that
// the story leaves there besides its logs; OpenDir removes those of an earlier story.
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
	if _, busy := errors.AsType[*BusyError](err); fresh && busy { // started in the same second
		other, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+"-")
		if err != nil {
			return nil, fmt.Errorf("working directory: %w", err)
		}
		return lockDir(other, leaves)
	}
	return d, err
}

func lockDir(path string, leaves []string) (*Dir, error) {
	// PostgreSQL may run as another user, who needs access.
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

func (d *Dir) File(name ...string) string {
	return filepath.Join(append([]string{d.Path}, name...)...)
}

// Servers returns the path of a file that is removed at the end.
func (d *Dir) Servers(name ...string) string { return d.File(append([]string{serversDir}, name...)...) }

func (d *Dir) Log(name string) string { return d.File(logsDir, name+".log") }

func (d *Dir) clear() error {
	for _, name := range append([]string{serversDir, logsDir}, d.leaves...) {
		if err := os.RemoveAll(d.File(name)); err != nil {
			return fmt.Errorf("clear the working directory: %w", err)
		}
	}
	return nil
}

// Close removes the servers' data and unlocks the directory.
func (d *Dir) Close() error {
	return errors.Join(os.RemoveAll(d.File(serversDir)), syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN), d.lock.Close())
}
