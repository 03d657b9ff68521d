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
	// portAttempts bounds how often a start is tried on another port when someone takes the one just chosen.
	portAttempts = 5
	// knockTimeout bounds one try to connect to a server that is starting.
	knockTimeout = 5 * time.Second
)

// launch starts a server on the whole cluster and waits until it takes connections.
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
		if again := p.mend(ctx, proc, at, attempt); !again {
			return err
		}
	}
}

// mend reports whether a start that went wrong is worth another one, after what stood in its way has been seen to.
func (p *Postgres) mend(ctx context.Context, proc *process, at address, attempt int) bool {
	said := proc.tail()
	switch {
	case strings.Contains(said, "pre-existing shared memory block"):
		// Backends of a server that was killed are still on their way out.
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

// awaitReady waits for a real connection. A server that does not get there is shut down.
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

// knock tries one connection. What listens on a TCP port may be a stranger who never answers, so the try ends with the
// server that it is meant for.
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

// refused tells a server that knows us not from one that is not up yet.
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
	Version string // as the server says it, like "15.18 (Debian 15.18-0+deb12u1)"
	Major   int
}

func (i Install) program(name string) string { return filepath.Join(i.Dir, name) }

// FindInstalls returns the usable PostgreSQL installations, newest first. Packages' own directories come before PATH:
// what stands there may be a wrapper that expects a packaged cluster. None at all is [ErrNoBinaries].
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

// BinariesVariable names the one directory of PostgreSQL's programs to use, instead of looking for some.
const BinariesVariable = "TRANCHE_POSTGRES_BIN"

// candidates lists the places where packages put the server, then the directories of PATH, each behind its links.
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

// inspect looks whether dir holds programs that run here.
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
	// maxLog is the size at which the log is put aside at the next start.
	maxLog = 16 << 20
	// lastResort is how long a server may take to obey an immediate shutdown before it is killed.
	lastResort = 5 * time.Second
)

// process is one life of a PostgreSQL server, our child.
type process struct {
	cmd     *exec.Cmd
	log     string
	offset  int64         // where its own words begin in the log
	exited  chan struct{} // closed when it has ended, with err set
	err     error
	started time.Time
}

// startProcess starts the server and returns before it is ready. With bound set, it also dies with this process.
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
			return nil, 0, fmt.Errorf("put the old log aside: %w", err)
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

// stop shuts the server down: clients are cut off and everything is written (fast). When ctx ends first it goes
// without a checkpoint (immediate); that loses nothing, but the next start has to recover, and stop says so.
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

// signal may find that the process has gone, which is as good.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }
