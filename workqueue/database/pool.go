package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Defaults of PoolConfig.
const (
	DefaultMaxConns = 16
	// PostgreSQL ends a statement that waits for a lock, or an idle transaction; it is retried.
	DefaultLockTimeout       = 10 * time.Second
	DefaultIdleInTransaction = 10 * time.Second
	// To connect; then an error, and the caller retries.
	connectTimeout = 5 * time.Second
	// For the first answer of a connection when a store is opened; then an error.
	firstAnswer = 30 * time.Second
	// For the answer of an idle connection before use; then it is dropped for another.
	idleAnswer = 5 * time.Second

	// ReservedConns is a store's connections beyond MaxConns: two each for sessions, credentials and leader tasks.
	ReservedConns = 3 * reservedConns
	reservedConns = 2
)

// PoolConfig says how to connect. A zero field means its default.
type PoolConfig struct {
	MaxConns          int
	LockTimeout       time.Duration // a statement that waits longer for a lock fails, with its transaction
	IdleInTransaction time.Duration // PostgreSQL ends a transaction whose client is silent for longer
	// TransactionPooler supports a pooler that assigns connections per transaction: no prepared statements, and only
	// transaction settings. A pooler like PgBouncer is detected.
	TransactionPooler bool
	// Serving keeps a connection of each kind open, since none may be available later.
	Serving bool
}

// Open returns a store on the database at url. Sessions and leases, credentials (see [ForCredentials]) and leader
// tasks (see [ForLeader]) have dedicated connections, so they never wait for the rest. release closes all of them.
func Open(ctx context.Context, url string, cfg PoolConfig) (store *DB, release func(), err error) {
	like, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return OpenLike(ctx, like, cfg)
}

// OpenLike is [Open] with connections like those of a pool, which is not used.
func OpenLike(ctx context.Context, like *pgxpool.Config, cfg PoolConfig) (store *DB, release func(), err error) {
	behind, otherIsolation, err := pooled(ctx, like)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	cfg.TransactionPooler = cfg.TransactionPooler || behind
	var pools []*pgxpool.Pool
	release = func() {
		for _, pool := range slices.Backward(pools) {
			pool.Close()
		}
	}
	ordinary := int32(cmp.Or(max(cfg.MaxConns, 0), DefaultMaxConns))
	for i, conns := range []int32{ordinary, reservedConns, reservedConns, reservedConns} {
		pool, err := cfg.connect(ctx, like, conns)
		if err == nil {
			pools = append(pools, pool)
		}
		if err == nil && (i < 2 || cfg.Serving) { // else they connect on demand: a command needs none
			err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { // it may accept connections and not answer
				ctx, cancel := context.WithTimeout(ctx, firstAnswer)
				defer cancel()
				return conn.Ping(ctx)
			})
		}
		if err != nil {
			release()
			return nil, nil, fmt.Errorf("connect to PostgreSQL: %w", PoolerRemedy(err))
		}
	}
	store = New(pools[0])
	store.Sessions, store.Pool.credentials, store.Pool.tasks = pools[1], pools[2], pools[3]
	if cfg.TransactionPooler {
		store.settings = cfg.transactionSettings(like)
		store.Pool.settings, store.Pool.begins = store.settings, otherIsolation
	}
	return store, release, nil
}

func (c PoolConfig) connect(ctx context.Context, like *pgxpool.Config, conns int32) (*pgxpool.Pool, error) {
	cfg := like.Copy()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = conns, min(cfg.MinConns, conns), min(cfg.MinIdleConns, conns)
	if c.Serving {
		cfg.MinConns = max(cfg.MinConns, 1)
	}
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	// An idle connection is pinged before use: the kernel would retry a dead host for a quarter of an hour.
	if cfg.PingTimeout <= 0 {
		cfg.PingTimeout = idleAnswer
	}
	cfg.ConnConfig.OnPgError = keepAfter
	params := cfg.ConnConfig.RuntimeParams
	setUnlessGiven(params, "application_name", "tranche")
	if c.TransactionPooler {
		forTransactions(params)
		// It reads parameter types once: without them, maps and IDs cannot be written.
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		for name, value := range c.settings() {
			setUnlessGiven(params, name, value)
		}
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// readOnly is the error code of a write to a read-only server.
const readOnly = "25006"

// keepAfter reports whether a connection is usable after an error: not if the server became a standby.
func keepAfter(_ *pgconn.PgConn, e *pgconn.PgError) bool {
	return e.Code != readOnly && e.SeverityUnlocalized != "FATAL" // as in pgconn
}

func (c PoolConfig) settings() map[string]string {
	lock, idle := c.LockTimeout, c.IdleInTransaction
	if lock <= 0 {
		lock = DefaultLockTimeout
	}
	if idle <= 0 {
		idle = DefaultIdleInTransaction
	}
	return map[string]string{
		"lock_timeout":                        milliseconds(lock),
		"idle_in_transaction_session_timeout": milliseconds(idle),
		// The planner overestimates our statements: it would compile for seconds what runs in a millisecond.
		"jit": "off",
		// Statements rely on seeing what others committed while they waited.
		"default_transaction_isolation": "read committed",
	}
}

func setUnlessGiven(params map[string]string, name, value string) {
	if _, given := params[name]; !given {
		params[name] = value
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// backendPID runs in a transaction: a pooler that assigns connections per statement refuses that.
const backendPID = `SELECT pg_backend_pid(), current_setting('default_transaction_isolation') <> 'read committed'`

// pooled reports whether a pooler is between Tranche and PostgreSQL. A pooler invents the process ID that a client
// gets for cancelling, which then matches PostgreSQL's only by chance. A session pooler counts, too; what suits a
// transaction pooler works with it. otherIsolation: statements do not read committed data by default.
func pooled(ctx context.Context, like *pgxpool.Config) (behind, otherIsolation bool, err error) {
	cfg := like.Copy()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return false, false, err
		}
	}
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	forTransactions(cfg.ConnConfig.RuntimeParams)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return false, false, PoolerRemedy(err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var pid uint32
		err := tx.QueryRow(ctx, backendPID, pgx.QueryExecModeSimpleProtocol).Scan(&pid, &otherIsolation)
		behind = pid != conn.PgConn().PID()
		return err
	})
	return behind, otherIsolation, PoolerRemedy(err)
}

// forTransactions removes from a connection's parameters what a pooler would not pass on, and returns it.
func forTransactions(params map[string]string) map[string]string {
	taken := map[string]string{}
	for name := range (PoolConfig{}).settings() {
		if value, given := params[name]; given {
			taken[name] = value
			delete(params, name)
		}
	}
	return taken
}

// transactionSettings returns the statement sent after the BEGIN of each transaction, in the same flush: session
// settings would leak to the pooler's next client. The URL's settings override ours. Its argument is the timeout
// ([pg.Until]), since a pooler may not pass on a cancellation.
func (c PoolConfig) transactionSettings(like *pgxpool.Config) string {
	all := c.settings()
	maps.Copy(all, forTransactions(like.Copy().ConnConfig.RuntimeParams))
	delete(all, "default_transaction_isolation") // a transaction has begun by then: see [pg.Begin]
	set := []string{
		"set_config('statement_timeout', coalesce(nullif(current_setting('statement_timeout'), '0'), $1), true)",
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		set = append(set, "set_config('"+name+"', '"+strings.ReplaceAll(all[name], "'", "''")+"', true)")
	}
	return "SELECT " + strings.Join(set, ", ")
}

// PoolerRemedy adds what to do to an error of a misconfigured or unrecognized pooler. Others stay unchanged.
func PoolerRemedy(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch {
	case strings.Contains(pg.Message, "statement pooling"):
		return fmt.Errorf("the pooler hands out connections by statement, and a run needs transactions; set pool_mode to "+
			"transaction or session: %w", err)
	case strings.Contains(pg.Message, "unsupported startup parameter"):
		return fmt.Errorf("the pooler refuses a parameter of the connection; let it pass, by "+
			"ignore_startup_parameters = lock_timeout,idle_in_transaction_session_timeout and the one that it names: %w", err)
	case pg.Code == "42P05", pg.Code == "26000" && strings.Contains(pg.Message, "prepared statement"):
		return fmt.Errorf("there seems to be a transaction pooler; use --transaction-pooler: %w", err)
	}
	return err
}

// Coming reports whether an error means that PostgreSQL is temporarily unusable, and why: starting, recovering,
// shutting down, full, read-only or not answering. Wrong credentials, names or TLS settings are permanent.
func Coming(err error) (why string, coming bool) {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if pg.Code == "08P01" {
			return comingByPooler(pg.Message)
		}
		return comingByCode(pg.Code)
	}
	if errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrStandbyConnection) {
		return "takes no writes yet (target_session_attrs)", true // no server has been promoted
	}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return "", false // it also covers unreadable files
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return "has no address yet (the name " + dns.Name + " is not known)", true // of a container that is not up
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "does not answer", true
	}
	for _, passing := range []error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH,
		syscall.ENOENT,              // the socket of a server that is not up
		io.EOF, io.ErrUnexpectedEOF, // killed while answering; or a proxy before one that is not up
	} {
		if errors.Is(err, passing) {
			return "does not answer", true
		}
	}
	return "", false
}

func comingByCode(code string) (why string, coming bool) {
	switch code {
	case "57P03": // cannot_connect_now
		return "is starting up, or recovering", true
	case "57P01", "57P02": // admin_shutdown, crash_shutdown
		return "is shutting down", true
	case readOnly:
		return "takes no writes", true // a standby, or default_transaction_read_only
	case "53300": // too_many_connections
		return "has no connection left", true
	case "08000", "08001", "08003", "08006": // connections lost or not made, according to poolers
		return "does not answer", true
	}
	return "", false
}

// comingByPooler reads PgBouncer's own failures, which all have the SQLSTATE of a protocol violation, including an
// unknown database. Temporary ones contain the names of its settings.
func comingByPooler(message string) (why string, coming bool) {
	for _, said := range []struct{ part, why string }{
		{"server_login_retry", "does not answer, says its pooler"},
		{"client_login_timeout", "does not answer, says its pooler"},
		{"cannot connect to server", "does not answer, says its pooler"},
		{"query_wait_timeout", "does not answer its pooler"},
		{"max_client_conn", "has no connection left, says its pooler"},
		{"max_db_client_connections", "has no connection left, says its pooler"},
		{"max_user_client_connections", "has no connection left, says its pooler"},
		{"shutting down", "has a pooler that is shutting down"},
	} {
		if strings.Contains(message, said.part) {
			return said.why, true
		}
	}
	return "", false
}
