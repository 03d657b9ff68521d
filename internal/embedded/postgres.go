package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

const (
	// DefaultDatabase is the database created in a private cluster.
	DefaultDatabase = "tranche"
	// startTimeout limits a start, with crash recovery.
	startTimeout = 5 * time.Minute
)

// PostgresConfig configures a private cluster. Only DataDir is required.
type PostgresConfig struct {
	// DataDir is created if missing, and may hold other files.
	DataDir string
	// Settings override the package's PostgreSQL settings.
	Settings map[string]string
	// Prepare, if set, fills DefaultDatabase while a new cluster is made, on Linux without a sync of each file. An error
	// fails the start and leaves no cluster.
	Prepare func(ctx context.Context, url string) error
	// NoRestart disables restarting a server that died.
	NoRestart bool
	// Bound ends the server immediately when this process dies. Linux only.
	Bound bool
	// Log may be nil.
	Log *zap.Logger
}

func (c PostgresConfig) withDefaults() (PostgresConfig, error) {
	if c.DataDir == "" {
		return c, errors.New("PostgresConfig.DataDir is empty")
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return c, fmt.Errorf("PostgresConfig.DataDir: %w", err)
	}
	c.DataDir = dir
	c.Log = cmp.Or(c.Log, zap.NewNop())
	return c, nil
}

// Postgres is a private cluster with a running server.
type Postgres struct {
	config  PostgresConfig
	layout  layout
	owner   account
	install Install
	lock    *dirLock

	mu      sync.Mutex
	address address
	proc    *process

	quit    context.CancelFunc // ends the watch on the server
	watched chan struct{}      // closed when the watch ends
	stop    sync.Once
	stopErr error
}

// StartPostgres runs the cluster in config.DataDir, creating it if needed, and returns when a connection to
// DefaultDatabase, created if missing, works. It can return [ErrNoBinaries], [LockedError], [VersionError],
// [AccessError] and [ServerError]. The context governs the start only.
func StartPostgres(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	l := newLayout(config.DataDir)
	if err := makeDir(l.dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(l.dir, l.lock)
	if err != nil {
		return nil, err
	}
	p := &Postgres{config: config, layout: l, lock: lock, watched: make(chan struct{})}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	watch, quit := context.WithCancel(context.Background())
	p.quit = quit
	go p.watch(watch)
	return p, nil
}

func (p *Postgres) start(ctx context.Context) (err error) {
	l := p.layout
	if p.owner, err = serverAccount(l.cluster); err != nil {
		return err
	}
	if err := l.checkAccess(p.owner); err != nil {
		return err
	}
	l.clearDrafts()
	if p.install, err = p.openCluster(ctx); err != nil {
		return err
	}
	if err := clearOrphan(ctx, l.cluster, p.config.Log); err != nil {
		return err
	}
	return p.serve(ctx)
}

// serve starts the server, and creates DefaultDatabase if it is missing.
func (p *Postgres) serve(ctx context.Context) (err error) {
	l := p.layout
	if err := l.makeRun(p.owner); err != nil {
		return err
	}
	if p.address, err = l.chooseAddress(ctx); err != nil {
		return err
	}
	if err := p.launch(ctx); err != nil {
		return err
	}
	if err := p.CreateDatabase(ctx, DefaultDatabase); err != nil {
		return errors.Join(err, p.proc.stop(ctx))
	}
	return nil
}

func (p *Postgres) currentAddress() address {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// URL returns the superuser's URL of DefaultDatabase, for pgx and libpq. With TCP it includes a password.
func (p *Postgres) URL() string { return p.URLFor(DefaultDatabase) }

// URLFor returns the superuser's URL of another database of the cluster.
func (p *Postgres) URLFor(database string) string { return p.currentAddress().url(database) }

// BinDir returns the directory of the PostgreSQL programs in use, usually also of psql and pgbench.
func (p *Postgres) BinDir() string { return p.install.Dir }

// PID returns the process ID of the running server.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.cmd.Process.Pid
}

// CreateDatabase creates a database unless it exists.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	err := connect(ctx, p.URLFor("postgres"), func(conn *pgx.Conn) error {
		var exists bool
		if err := conn.QueryRow(ctx, databaseExists, name).Scan(&exists); err != nil || exists {
			return err
		}
		_, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (pg.Code == "42P04" || pg.Code == "23505") { // created concurrently
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

const databaseExists = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`

// Stop shuts the server down and releases the directory. If ctx ends before the server has written everything, it is
// stopped without loss and Stop returns an error. Later calls return the first result.
func (p *Postgres) Stop(ctx context.Context) error {
	p.stop.Do(func() {
		p.quit()
		<-p.watched
		p.stopErr = errors.Join(p.proc.stop(ctx), p.lock.release())
	})
	return p.stopErr
}

const (
	settingsFile = "tranche.conf" // in the cluster; ours
	operatorFile = "local.conf"   // in the cluster; overrides ours
)

// settings suit a new cluster for batches on a small machine. Statements and failing rows are not logged, because
// they hold payloads.
func (a address) settings() map[string]string {
	s := map[string]string{
		"port":                         strconv.Itoa(a.port),
		"listen_addresses":             "",
		"unix_socket_directories":      "",
		"unix_socket_permissions":      "0700",
		"max_connections":              "100",
		"shared_buffers":               "256MB",
		"min_wal_size":                 "256MB",
		"max_wal_size":                 "4GB",
		"wal_compression":              "on",
		"checkpoint_timeout":           "15min",
		"checkpoint_completion_target": "0.9",
		"random_page_cost":             "1.1",
		"jit":                          "off",
		"timezone":                     "UTC",
		"log_timezone":                 "UTC",
		"log_destination":              "stderr",
		"logging_collector":            "off",
		"log_line_prefix":              "%m [%p] ",
		"log_checkpoints":              "off",
		"log_error_verbosity":          "terse",
		"log_min_error_statement":      "panic",
	}
	if a.socketDir == "" {
		s["listen_addresses"] = "127.0.0.1"
	} else {
		// The setting is a list; an entry in quotes may hold a comma.
		s["unix_socket_directories"] = `"` + strings.ReplaceAll(a.socketDir, `"`, `""`) + `"`
	}
	return s
}

func (l layout) writeSettings(ctx context.Context, in Install, a account, at address, extra map[string]string) error {
	path := filepath.Join(l.cluster, settingsFile)
	// The probes below read the configuration too; a bad setting of an earlier start must not affect them.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := a.give(path); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	settings := at.settings()
	if l.accepts(ctx, in, a, "default_toast_compression", "lz4") {
		settings["default_toast_compression"] = "lz4"
		if in.Major > minMajor {
			settings["wal_compression"] = "lz4"
		}
	}
	maps.Copy(settings, extra)
	var text strings.Builder
	fmt.Fprintf(&text, "# Written by tranche at every start. Put settings of your own in %s.\n", operatorFile)
	quote := strings.NewReplacer(`\`, `\\`, `'`, `''`, "\n", " ")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, quote.Replace(settings[name]))
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

func (l layout) accepts(ctx context.Context, in Install, a account, name, value string) bool {
	cmd := exec.CommandContext(ctx, in.program("postgres"), "-D", l.cluster, "-C", name, "-c", name+"="+value)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = l.dir, serverEnv(), a.attributes()
	return cmd.Run() == nil
}
