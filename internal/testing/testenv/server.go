package testenv

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/embedded"
)

// shared is the test binary's server, shared because a start takes a second.
var shared sharedServer

type sharedServer struct {
	once    sync.Once
	err     error
	cluster *embedded.Postgres // nil: it is that of [WithPostgres]
	dir     string
	admin   *pgxpool.Pool
	base    string // URL of the server, for any database
	copying string // strategy of copying a template

	mu     sync.Mutex
	leases []*lease // that no test uses
}

// WithPostgres runs a command, such as go test, and a server for all test binaries that it starts.
func WithPostgres(command *exec.Cmd) error {
	var s sharedServer
	defer func() { _ = s.stop(context.Background()) }()
	if err := s.startPrivate(context.Background()); err != nil {
		return err
	}
	command.Env = append(os.Environ(), databaseVariable+"="+s.base)
	return command.Run()
}

// open starts the server, once.
func (s *sharedServer) open() error {
	s.once.Do(func() { s.err = s.start(context.Background()) })
	return s.err
}

func (s *sharedServer) start(ctx context.Context) (err error) {
	if s.base = os.Getenv(databaseVariable); s.base == "" {
		if err := s.startPrivate(ctx); err != nil {
			return err
		}
	}
	if s.admin, err = pgxpool.New(ctx, s.base); err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	return s.checkVersion(ctx)
}

func (s *sharedServer) startPrivate(ctx context.Context) (err error) {
	if s.dir, err = clusterDir(); err != nil {
		return err
	}
	if err := newCluster(ctx, s.dir); err != nil {
		return err
	}
	s.cluster, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: s.dir, Settings: reckless, NoRestart: true, Bound: true,
	})
	if err == nil {
		s.base = s.cluster.URLFor("postgres")
	}
	return err
}

// checkVersion refuses a server of the wrong version, which no test would notice.
func (s *sharedServer) checkVersion(ctx context.Context) error {
	want := os.Getenv(versionVariable)
	var is string
	err := s.admin.QueryRow(ctx, `SELECT (current_setting('server_version_num')::integer / 10000)::text`).Scan(&is)
	if is != "14" { // it has no strategies
		s.copying = " STRATEGY file_copy" // without durability it is faster
	}
	if err == nil && want != "" && want != is {
		err = fmt.Errorf("%s is %s, and the server is of version %s; run: make test PG=%s", versionVariable, want, is, want)
	}
	return err
}

// reckless settings are for data not needed after a crash.
var reckless = map[string]string{
	"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
	"max_connections": "600", "shared_buffers": "64MB", "wal_level": "minimal", "max_wal_senders": "0",
	"autovacuum": "off", "jit": "off", // as on nodes: compiling takes longer than it saves
}

// clusterDir returns a short path, since a socket's path is limited.
func clusterDir() (string, error) {
	sweep()
	dir, err := os.MkdirTemp(scratch(), dirPattern)
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711) // as root, the server runs as another user
}

func (s *sharedServer) clone(ctx context.Context, template string) (name, url string, err error) {
	if err := s.open(); err != nil {
		return "", "", err
	}
	name = "tranche_test_" + suffix()
	if err := s.create(ctx, name, template); err != nil {
		return "", "", err
	}
	url, err = withDatabase(s.base, name)
	return name, url, err
}

func (s *sharedServer) create(ctx context.Context, name, template string) error {
	err := s.alone(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+
		" TEMPLATE "+pgx.Identifier{template}.Sanitize()+s.copying)
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func (s *sharedServer) drop(ctx context.Context, name string) error {
	return s.alone(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

// alone runs a statement that needs exclusive use of a database. PostgreSQL waits 5 s for other sessions to end;
// alone retries, for a busy machine.
func (s *sharedServer) alone(ctx context.Context, sql string) error {
	for begun := time.Now(); ; {
		_, err := s.admin.Exec(ctx, sql)
		said, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || said.Code != objectInUse || time.Since(begun) > stopTimeout {
			return err
		}
	}
}

const objectInUse = "55006"

// stop undoes open, as far as it got.
func (s *sharedServer) stop(ctx context.Context) error {
	var err error
	for _, l := range s.leases {
		l.close()
		_, left := s.admin.Exec(ctx, returnIdle, l.name)
		err = errors.Join(err, left)
	}
	if s.admin != nil {
		s.admin.Close()
	}
	if s.cluster != nil {
		err = errors.Join(err, s.cluster.Stop(ctx))
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

func withDatabase(base, name string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("%s is not a URL like postgres://user@host/database", databaseVariable)
	}
	u.Path = "/" + name
	if q := u.Query(); !q.Has("connect_timeout") {
		q.Set("connect_timeout", "60") // the default of migrations is 5
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

// suffix makes names unique among test binaries on one server.
func suffix() string { return strings.ToLower(rand.Text()[:12]) }

const (
	memoryDir         = "/dev/shm"
	directoryVariable = "TRANCHE_TEST_DIR"
	// memoryFree is the minimum free space there, and free memory: each running test binary has a cluster there.
	memoryFree = 4 << 30
)

// scratch is the directory for data not needed after a crash, in memory if there is enough.
func scratch() string {
	if dir := os.Getenv(directoryVariable); dir != "" {
		return dir
	}
	var fs syscall.Statfs_t
	if syscall.Statfs(memoryDir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryFree || available() < memoryFree {
		return os.TempDir()
	}
	return memoryDir
}

// available returns the memory available to programs, in bytes; 0: unknown.
func available() uint64 {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kb, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			return kb << 10
		}
	}
	return 0
}

const (
	dirPattern = "tranche-test-*"
	// sweepAge protects directories not locked yet by a new binary, or whose server is stopped for a moment. It exceeds
	// a binary's longest run.
	sweepAge = 30 * time.Minute
)

// sweep removes clusters of test binaries that were killed or timed out. The next sweep retries those that remain.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPattern))
	others, _ := filepath.Glob(filepath.Join(scratch(), dirPattern))
	for _, dir := range append(dirs, others...) {
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > sweepAge && !locked(dir) {
			_ = os.RemoveAll(dir)
		}
	}
}

// locked reports whether a process uses the directory, by the lock of package embedded.
func locked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return !os.IsNotExist(err)
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
