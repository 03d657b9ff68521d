package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// layout names the contents of a PostgreSQL data directory. The directory may hold other files and keeps its owner.
type layout struct {
	dir      string
	cluster  string // PGDATA; created complete, by a rename
	drafts   string // pattern of initdb's working directories
	run      string // holds the socket; closed to other users
	log      string
	password string // of the superuser, for TCP
	lock     string
}

func newLayout(dir string) layout {
	in := func(name string) string { return filepath.Join(dir, name) }
	return layout{
		dir: dir, cluster: in("cluster"), drafts: in("cluster.new-*"), run: in("run"),
		log: in("postgres.log"), password: in("password"), lock: in("lock"),
	}
}

// makeDir creates dir and its parents. A root process makes them traversable, regardless of its umask, for the server's
// account.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return fmt.Errorf("make data directory: %w", err)
	}
	if os.Geteuid() == 0 {
		return os.Chmod(dir, 0o711) //nolint:gosec // to traverse, not to read
	}
	return nil
}

// checkAccess refuses a directory that the account cannot reach, and a cluster it does not own, because PostgreSQL's
// own errors are unclear.
func (l layout) checkAccess(a account) error {
	refused := func(at, fix string) error {
		return &AccessError{Dir: l.dir, User: a.name, At: at, Fix: fix}
	}
	if a.switched {
		for _, dir := range parents(l.dir) {
			info, err := os.Stat(dir)
			if err != nil {
				return fmt.Errorf("data directory %s: %w", l.dir, err)
			}
			if !a.mayEnter(info) {
				return refused(dir, fmt.Sprintf("PostgreSQL runs as %s because this process is root; chmod o+x %s", a.name, dir))
			}
		}
	}
	info, err := os.Stat(l.cluster)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data directory %s: %w", l.dir, err)
	}
	if uid, ok := ownerOf(info); ok && uid != a.uid {
		owner := userName(uid)
		return refused(l.cluster, fmt.Sprintf("it belongs to %s; run as %s", owner, owner))
	}
	return nil
}

func parents(dir string) []string {
	var all []string
	for {
		all = append([]string{dir}, all...)
		up := filepath.Dir(dir)
		if up == dir {
			return all
		}
		dir = up
	}
}

func (l layout) makeRun(a account) error {
	if err := os.MkdirAll(l.run, 0o700); err != nil {
		return fmt.Errorf("make socket directory: %w", err)
	}
	return a.give(l.run)
}

func tail(path string, offset int64) string {
	const most, lines = 4096, 12
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(offset, info.Size()-most)
	buf := make([]byte, max(0, info.Size()-from))
	n, _ := f.ReadAt(buf, from)
	all := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// dirLock owns a directory until it is released or this process ends in any way. The file stays: removing it would
// let two processes lock two files of the same name.
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

// release unlocks explicitly: a child being forked right now still has the file open, so closing ours is not enough.
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
