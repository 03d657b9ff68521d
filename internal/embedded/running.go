package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoCluster is returned for a directory without a cluster.
var ErrNoCluster = errors.New("there is no private PostgreSQL in this directory")

// Exists reports whether the data directory of a PostgresConfig has a cluster.
func Exists(dataDir string) bool {
	_, err := os.Stat(filepath.Join(newLayout(dataDir).cluster, "PG_VERSION"))
	return err == nil
}

// RunningURL returns the URL of a server run by another process in this data directory.
func RunningURL(ctx context.Context, dataDir string) (string, error) {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return "", fmt.Errorf("find the private PostgreSQL in %s: %w", dataDir, err)
	}
	l := newLayout(dir)
	if !Exists(dir) {
		return "", fmt.Errorf("%s: %w", dir, ErrNoCluster)
	}
	at, err := l.chooseAddress(ctx)
	if err != nil {
		return "", err
	}
	if at.socketDir == "" { // the server's chosen free port
		if at.port, err = postmasterPort(filepath.Join(l.cluster, "postmaster.pid")); err != nil {
			return "", fmt.Errorf("find the private PostgreSQL in %s: %w", dir, err)
		}
	}
	return at.url(DefaultDatabase), nil
}

func postmasterPort(path string) (int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errors.New("it does not run")
	}
	if err != nil {
		return 0, err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 4 {
		return 0, errors.New("it is just starting; try again")
	}
	return strconv.Atoi(strings.TrimSpace(lines[3]))
}

const (
	// socketPathLimit is below the kernels' limit on socket paths: 107 bytes on Linux, 103 on macOS.
	socketPathLimit = 100
	socketPort      = 5432
)

// address is where the server listens: a socket in a private directory, or 127.0.0.1 if the path is too long.
type address struct {
	socketDir string // empty: TCP
	port      int
	password  string
}

func (l layout) chooseAddress(ctx context.Context) (address, error) {
	if len(filepath.Join(l.run, ".s.PGSQL."+strconv.Itoa(socketPort))) < socketPathLimit {
		return address{socketDir: l.run, port: socketPort}, nil
	}
	password, err := os.ReadFile(l.password)
	if err != nil {
		return address{}, fmt.Errorf("read the cluster's password: %w", err)
	}
	port, err := freePort(ctx)
	return address{port: port, password: strings.TrimSpace(string(password))}, err
}

// freePort returns a port that was free just now. If it is taken before PostgreSQL binds it, the start is retried
// with another.
func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	ln, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}

// url is independent of the environment's PG variables.
func (a address) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database}
	q := url.Values{"sslmode": {"disable"}}
	if a.socketDir != "" {
		q.Set("host", a.socketDir)
		q.Set("port", strconv.Itoa(a.port))
	} else {
		u.User = url.UserPassword(superuser, a.password)
		u.Host = "127.0.0.1:" + strconv.Itoa(a.port)
	}
	// libpq does not read + as a space, unlike net/url.
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

// ErrNoBinaries is returned if no usable PostgreSQL is installed. Its text says what to install.
var ErrNoBinaries = errors.New(`no PostgreSQL server programs (initdb, postgres; version 14 or newer) on this machine
  Debian, Ubuntu:  apt-get install postgresql
  Fedora, RHEL:    dnf install postgresql-server postgresql-contrib
  macOS:           brew install postgresql@16
or use a server that runs already: --database URL`)

// ErrNotOnWindows is returned for a private PostgreSQL on Windows.
var ErrNotOnWindows = errors.New("a private PostgreSQL is not started on Windows; use a server that runs already: " +
	"--database URL")

// LockedError is returned if another process uses the directory.
type LockedError struct {
	Dir string
	PID int // 0: unknown
}

func (e *LockedError) Error() string {
	owner := "another process"
	if e.PID != 0 {
		owner = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s: stop that one, or choose another --data-dir", e.Dir, owner)
}

// VersionError is returned if the major version that made the data is not installed.
type VersionError struct {
	Dir       string
	Data      int       // the data's major version
	Installed []Install // available versions, newest first
}

func (e *VersionError) Error() string {
	var have []string
	for _, in := range e.Installed {
		have = append(have, fmt.Sprintf("%d (%s)", in.Major, in.Dir))
	}
	return fmt.Sprintf("%s was made by PostgreSQL %d, but installed is PostgreSQL %s: install version %d again "+
		"(Debian: apt-get install postgresql-%d), move the data with pg_upgrade, or choose another --data-dir",
		e.Dir, e.Data, strings.Join(have, " and "), e.Data, e.Data)
}

// AccessError is returned if the server's user cannot reach, or does not own, the data directory.
type AccessError struct {
	Dir  string // the data directory
	User string // the server's user
	At   string // the refused path
	Fix  string
}

func (e *AccessError) Error() string {
	return fmt.Sprintf("data directory %s: user %s has no access to %s: %s, or choose another --data-dir",
		e.Dir, e.User, e.At, e.Fix)
}

// ServerError is returned when a PostgreSQL program ended or did not become ready. It has the last lines of its
// output.
type ServerError struct {
	Program string // "initdb", "postgres"
	Log     string // path of the full log; empty: Tail is everything
	Tail    string
	Err     error
}

func (e *ServerError) Error() string {
	text := fmt.Sprintf("%s: %v", e.Program, e.Err)
	if e.Tail != "" {
		text += "; it said:\n" + e.Tail
	}
	if e.Log != "" {
		text += "\n(the whole log: " + e.Log + ")"
	}
	return text
}

func (e *ServerError) Unwrap() error { return e.Err }

// ListenError is returned if the NATS server cannot use its address.
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string {
	return fmt.Sprintf("the NATS server cannot listen on %s: %v; choose another address with --nats-listen, "+
		"or use a server that runs already with --nats URL", e.Addr, e.Err)
}

func (e *ListenError) Unwrap() error { return e.Err }
