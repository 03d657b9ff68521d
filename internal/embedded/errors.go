package embedded

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoBinaries is returned when no usable PostgreSQL is installed. Its text says what to install.
var ErrNoBinaries = errors.New(`no PostgreSQL server programs (initdb, postgres; version 14 or newer) on this machine
  Debian, Ubuntu:  apt-get install postgresql
  Fedora, RHEL:    dnf install postgresql-server postgresql-contrib
  macOS:           brew install postgresql@16
or use a server that runs already: --database URL`)

// ErrNotOnWindows is returned for a private PostgreSQL there.
var ErrNotOnWindows = errors.New("a private PostgreSQL is not started on Windows; use a server that runs already: " +
	"--database URL")

// LockedError is returned when another process works in the directory.
type LockedError struct {
	Dir string
	PID int // 0 when not known
}

func (e *LockedError) Error() string {
	owner := "another process"
	if e.PID != 0 {
		owner = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s: stop that one, or choose another --data-dir", e.Dir, owner)
}

// VersionError is returned when the data was made by a major version of PostgreSQL that is not installed.
type VersionError struct {
	Dir       string
	Data      int       // the major version that made the data
	Installed []Install // what there is instead, newest first
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

// AccessError is returned when the user that the server has to run as cannot reach the data directory, or does not
// own it.
type AccessError struct {
	Dir  string // the data directory
	User string // who was refused
	At   string // where
	Fix  string
}

func (e *AccessError) Error() string {
	return fmt.Sprintf("data directory %s: user %s has no access to %s: %s, or choose another --data-dir",
		e.Dir, e.User, e.At, e.Fix)
}

// ServerError is returned when a PostgreSQL program ended or did not become ready. It carries the last lines it said.
type ServerError struct {
	Program string // "initdb", "postgres"
	Log     string // path of the whole log; empty when Tail is all there is
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

// ListenError is returned when the NATS server cannot use the address it was given.
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string {
	return fmt.Sprintf("the NATS server cannot listen on %s: %v; choose another address with --nats-listen, "+
		"or use a server that runs already with --nats URL", e.Addr, e.Err)
}

func (e *ListenError) Unwrap() error { return e.Err }
