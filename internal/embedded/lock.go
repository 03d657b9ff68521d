package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// dirLock marks a directory as ours until it is released or this process ends, however it ends. The file stays: to
// remove it would open a gap in which two processes lock two files of the same name.
type dirLock struct {
	file *os.File
}

// lockDir takes the lock at path for dir, or returns a [LockedError]. Children do not inherit the lock.
func lockDir(dir, path string) (*dirLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	err = lockFile(f)
	if errors.Is(err, errTaken) {
		err = &LockedError{Dir: dir, PID: readPID(f)}
	} else if err == nil {
		err = writePID(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &dirLock{file: f}, nil
}

// release unlocks by hand: a child that is being forked right now still has the open file, and closing ours would not
// do.
func (l *dirLock) release() error {
	return errors.Join(unlockFile(l.file), l.file.Close())
}

func readPID(f *os.File) int {
	text, _ := io.ReadAll(io.LimitReader(f, 32))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}
