package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/internal/datadir"
)

const (
	statementsFile = "statements.ndjson"
	pdfsDir        = "pdfs"
	serversDir     = "servers" // what PostgreSQL and NATS keep; gone at the end
	logsDir        = "logs"
	lockFile       = ".lock"
)

// workDir is the directory of one demo, ours alone while it is open.
type workDir struct {
	path string
	lock *os.File
}

// openDir makes the directory, or a fresh one when path is empty.
func openDir(path string, now time.Time) (*workDir, error) {
	fresh := path == ""
	if fresh {
		parent, err := datadir.Default()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(parent, "demo", now.Format("2006-01-02-150405"))
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("directory of the demo (--dir): %w", err)
	}
	d, err := lockDir(path)
	var busy *BusyError
	if fresh && errors.As(err, &busy) { // begun in the same second
		return openDirBeside(path)
	}
	return d, err
}

func openDirBeside(path string) (*workDir, error) {
	beside, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+"-")
	if err != nil {
		return nil, fmt.Errorf("directory of the demo: %w", err)
	}
	return lockDir(beside)
}

func lockDir(path string) (*workDir, error) {
	// PostgreSQL may run as another user, who has to pass through.
	if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("directory of the demo (--dir): %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("directory of the demo (--dir): %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &BusyError{Dir: path}
		}
		return nil, errors.Join(err, lock.Close())
	}
	d := &workDir{path: path, lock: lock}
	if err := d.clear(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := os.MkdirAll(d.file(logsDir), 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("directory of the demo: %w", err), lock.Close())
	}
	return d, nil
}

func (d *workDir) file(name ...string) string {
	return filepath.Join(append([]string{d.path}, name...)...)
}

// clear removes what a demo before may have left: a killed one leaves its servers' data.
func (d *workDir) clear() error {
	for _, name := range []string{
		serversDir, logsDir, statementsFile, pdfsDir, planFile, connectionsFile, fiftyFile,
	} {
		if err := os.RemoveAll(d.file(name)); err != nil {
			return fmt.Errorf("clear the directory of the demo: %w", err)
		}
	}
	return nil
}

// close removes the servers' data and gives the directory free.
func (d *workDir) close() error {
	return errors.Join(os.RemoveAll(d.file(serversDir)), syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN), d.lock.Close())
}
