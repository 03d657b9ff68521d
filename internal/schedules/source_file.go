package schedules

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Files is the directory that schedules take files of items from.
type Files struct{ root *os.Root }

// OpenFiles opens the directory. Nothing outside of it can be read by it, whatever links lead there.
func OpenFiles(directory string) (*Files, error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, fmt.Errorf("the directory of schedules' files: %w", err)
	}
	return &Files{root}, nil
}

// Close lets go of the directory.
func (f *Files) Close() error { return f.root.Close() }

// CheckPath returns a *SourceError for a path that could not be one of a file below a directory.
func CheckPath(path string) error {
	if !filepath.IsLocal(path) {
		return refused("file %q is no path below the directory of schedules' files; give one like daily/customers.csv, "+
			"without a leading / and without ..", path)
	}
	return nil
}

// Open opens a file below the directory. An error is a *SourceError; a file that is not there may come later.
func (f *Files) Open(path string) (io.ReadCloser, error) {
	if f == nil {
		return nil, refused("file %q: this node has no directory of schedules' files; start nodes with: tranche serve "+
			"--schedule-files DIR", path)
	}
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	// Without waiting: a pipe would have no end, and nobody at the other one.
	file, err := f.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileProblem(path, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refused("file %q is a directory, a pipe or a device, and not a file of items", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// fileProblem says why a file cannot be read, without the place of the directory.
func fileProblem(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return later("there is no file %q below the directory of schedules' files", path)
	case errors.Is(err, fs.ErrPermission):
		return later("file %q may not be read by the node's user", path)
	}
	if cause, ok := errors.AsType[*fs.PathError](err); ok {
		err = cause.Err
	}
	if _, system := errors.AsType[syscall.Errno](err); system {
		return later("file %q cannot be read: %v", path, err)
	}
	return refused("file %q leads out of the directory of schedules' files, or is no path: %v", path, err)
}
