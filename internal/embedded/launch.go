package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// portAttempts limits the retries of a start on another port when the chosen one is taken.
	portAttempts = 5
	// knockTimeout limits one connection attempt to a starting server.
	knockTimeout = 5 * time.Second
)

func (p *Postgres) launch(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		at := p.currentAddress()
		if err := p.layout.writeSettings(ctx, p.install, p.owner, at, p.config.Settings); err != nil {
			return err
		}
		proc, err := startProcess(p.install, p.layout, p.owner, p.config.Bound)
		if err != nil {
			return err
		}
		if err = p.awaitReady(ctx, proc, at); err == nil {
			p.mu.Lock()
			p.proc = proc
			p.mu.Unlock()
			p.config.Log.Info("PostgreSQL is ready", zap.String("version", p.install.Version),
				zap.String("dir", p.layout.dir), zap.Int("pid", proc.cmd.Process.Pid),
				zap.Duration("took", time.Since(proc.started)))
			return nil
		}
		if again := p.repair(ctx, proc, at, attempt); !again {
			return err
		}
	}
}

func (p *Postgres) repair(ctx context.Context, proc *process, at address, attempt int) bool {
	said := proc.tail()
	switch {
	case strings.Contains(said, "pre-existing shared memory block"):
		// Backends of a killed server are still exiting.
		return backoff.Sleep(ctx, 200*time.Millisecond) == nil
	case at.socketDir == "" && strings.Contains(said, "could not bind") && attempt < portAttempts:
		port, err := freePort(ctx)
		if err != nil {
			return false
		}
		p.mu.Lock()
		p.address.port = port
		p.mu.Unlock()
		return true
	}
	return false
}

func (p *Postgres) awaitReady(ctx context.Context, proc *process, at address) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := knock(ctx, proc, at)
		if err == nil {
			return nil
		}
		if refused(err) {
			return errors.Join(proc.failure(err), proc.stop(ctx))
		}
		select {
		case <-proc.exited:
			return proc.failure(proc.err)
		case <-ctx.Done():
			return errors.Join(proc.failure(context.Cause(ctx)), proc.stop(ctx))
		case <-tick.C:
		}
	}
}

// knock attempts one connection. Another program that never answers may listen on a TCP port, so the attempt ends
// with the server it is meant for.
func knock(ctx context.Context, proc *process, at address) error {
	ctx, cancel := context.WithTimeout(ctx, knockTimeout)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-proc.exited:
			cancel()
		case <-done:
		}
	}()
	return connect(ctx, at.url("postgres"), func(*pgx.Conn) error { return nil })
}

func refused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.HasPrefix(pg.Code, "28")
}

func connect(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close(context.WithoutCancel(ctx)))
}

// minMajor is the oldest PostgreSQL that can count bits.
const minMajor = 14

// Install is a directory of PostgreSQL server programs.
type Install struct {
	Dir     string
	Version string // as the server reports it, like "15.18 (Debian 15.18-0+deb12u1)"
	Major   int
}

func (i Install) program(name string) string { return filepath.Join(i.Dir, name) }

// FindInstalls returns the usable PostgreSQL installations, newest first. Packages' directories precede PATH, where
// wrappers for a packaged cluster may be. Without any it returns [ErrNoBinaries].
func FindInstalls(ctx context.Context) ([]Install, error) {
	var found []Install
	for _, dir := range candidates() {
		known := func(in Install) bool { return in.Dir == dir }
		if slices.ContainsFunc(found, known) {
			continue
		}
		if in, ok := inspect(ctx, dir); ok && in.Major >= minMajor {
			found = append(found, in)
		}
	}
	if dir := os.Getenv(BinariesVariable); len(found) == 0 && dir != "" {
		return nil, fmt.Errorf("%s is %s, where no PostgreSQL of version %d or newer runs: %w", BinariesVariable, dir,
			minMajor, ErrNoBinaries)
	}
	if len(found) == 0 {
		return nil, ErrNoBinaries
	}
	slices.SortStableFunc(found, func(a, b Install) int { return cmp.Compare(b.Major, a.Major) })
	return found, nil
}

// BinariesVariable sets the directory of PostgreSQL's programs, which disables the search.
const BinariesVariable = "TRANCHE_POSTGRES_BIN"

func candidates() []string {
	if dir := os.Getenv(BinariesVariable); dir != "" {
		return []string{dir}
	}
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/lib/postgresql*/bin",  // SUSE
		"/usr/pgsql-*/bin",          // packages of postgresql.org for Fedora and RHEL
		"/usr/libexec/postgresql*",  // Alpine
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin", // Homebrew on Intel
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		"/opt/local/lib/postgresql*/bin", // MacPorts
		"/usr/local/pgsql/bin",           // built from source
	} {
		matches, _ := filepath.Glob(pattern) // the patterns are well formed
		dirs = append(dirs, matches...)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path, err := filepath.EvalSymlinks(filepath.Join(dir, "initdb"))
		if err == nil && filepath.IsAbs(path) {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return dirs
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (([0-9]+).*)`)

func inspect(ctx context.Context, dir string) (Install, bool) {
	in := Install{Dir: dir}
	if err := exec.CommandContext(ctx, in.program("initdb"), "--version").Run(); err != nil {
		return in, false
	}
	out, err := exec.CommandContext(ctx, in.program("postgres"), "--version").Output()
	match := versionLine.FindStringSubmatch(strings.TrimSpace(string(out)))
	if err != nil || match == nil {
		return in, false
	}
	in.Version = match[1]
	in.Major, err = strconv.Atoi(match[2])
	return in, err == nil
}

const (
	// maxLog is the size at which the next start rotates the log.
	maxLog = 16 << 20
	// lastResort is how long an immediate shutdown may take before the server is killed.
	lastResort = 5 * time.Second
)

type process struct {
	cmd     *exec.Cmd
	log     string
	offset  int64         // where its output begins in the log
	exited  chan struct{} // closed at its end, with err set
	err     error
	started time.Time
}

// startProcess starts the server and returns before it is ready. If bound, the server dies with this process.
func startProcess(in Install, l layout, a account, bound bool) (*process, error) {
	log, offset, err := l.openLog()
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()                           // the child has its own
	cmd := exec.Command(in.program("postgres"), "-D", l.cluster) //nolint:noctx // it outlives the start
	cmd.Dir, cmd.Env, cmd.SysProcAttr = l.dir, serverEnv(), a.attributes()
	cmd.Stdout, cmd.Stderr = log, log
	if bound {
		DieWithParent(cmd.SysProcAttr, syscall.SIGQUIT) // an immediate shutdown
	}
	p := &process{cmd: cmd, log: l.log, offset: offset, exited: make(chan struct{}), started: time.Now()}
	if err := StartChild(cmd, func(err error) { p.err = err; close(p.exited) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (l layout) openLog() (*os.File, int64, error) {
	if info, err := os.Stat(l.log); err == nil && info.Size() > maxLog {
		if err := os.Rename(l.log, l.log+".1"); err != nil {
			return nil, 0, fmt.Errorf("rename the old log: %w", err)
		}
	}
	f, err := os.OpenFile(l.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func (p *process) tail() string { return tail(p.log, p.offset) }

func (p *process) failure(err error) error {
	return &ServerError{Program: "postgres", Log: p.log, Tail: p.tail(), Err: err}
}

// stop shuts the server down with fast mode: clients are disconnected and everything is written. If ctx ends first it
// uses immediate mode, without a checkpoint. That loses nothing, but the next start must recover, which the error
// says.
func (p *process) stop(ctx context.Context) error {
	p.signal(syscall.SIGINT)
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
	}
	p.signal(syscall.SIGQUIT)
	timer := time.NewTimer(lastResort)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
	return fmt.Errorf("stop PostgreSQL: %w; it was shut down without a checkpoint and will recover at its next start",
		context.Cause(ctx))
}

// signal ignores errors: the process may already have ended.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }
