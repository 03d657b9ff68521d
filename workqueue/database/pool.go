package database

import (
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
	// PostgreSQL ends a statement that waits for a lock, or a transaction in which nothing happens; it is run again.
	DefaultLockTimeout       = 10 * time.Second
	DefaultIdleInTransaction = 10 * time.Second
	// One connection to PostgreSQL; then an error, and whoever asked tries again.
	connectTimeout = 5 * time.Second
	// The answer to the first question of a connection, when a store is opened; then an error.
	firstAnswer = 30 * time.Second
	// The answer of a connection that was idle, before it is used; then it is given up, and the next one or a new one
	// is.
	idleAnswer = 5 * time.Second

	// ReservedConns is what a store opens beside MaxConns: two each for sessions and leases, for credentials, and for the
	// leader tasks.
	ReservedConns = 3 * reservedConns
	reservedConns = 2
)

// PoolConfig says how to connect. A zero field means its default.
type PoolConfig struct {
	MaxConns          int
	LockTimeout       time.Duration // a statement that waits longer for a lock fails, and its transaction with it
	IdleInTransaction time.Duration // PostgreSQL ends a transaction whose client has gone silent
	// TransactionPooler makes the store fit for a pooler that hands out connections per transaction: no prepared
	// statements, and no settings but those of a transaction. A pooler that makes itself known, as PgBouncer does, needs
	// no word.
	TransactionPooler bool
	// Serving keeps a connection of each kind open: others may have taken all that PostgreSQL has when it is needed.
	Serving bool
}

// Open returns a store on the database at url. Sessions and leases, credentials (see [ForCredentials]) and leader tasks
// (see [ForLeader]) have connections of their own, so that they go on while everything else waits for one. release
// closes all of them.
func Open(ctx context.Context, url string, cfg PoolConfig) (store *DB, release func(), err error) {
	behind, otherIsolation, err := pooled(ctx, url)
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
	for i, conns := range []int32{cfg.maxConns(), reservedConns, reservedConns, reservedConns} {
		pool, err := cfg.connect(ctx, url, conns)
		if err == nil {
			pools = append(pools, pool)
		}
		if err == nil && (i < 2 || cfg.Serving) { // else the others connect when they have to: a command needs none
			err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return ping(ctx, conn) })
		}
		if err != nil {
			release()
			return nil, nil, fmt.Errorf("connect to PostgreSQL: %w", PoolerRemedy(err))
		}
	}
	store = New(pools[0])
	store.Sessions, store.Pool.credentials, store.Pool.tasks = pools[1], pools[2], pools[3]
	if cfg.TransactionPooler {
		store.settings = cfg.transactionSettings(url)
		store.Pool.settings, store.Pool.begins = store.settings, otherIsolation
	}
	return store, release, nil
}

func (c PoolConfig) maxConns() int32 {
	if c.MaxConns <= 0 {
		return DefaultMaxConns
	}
	return int32(c.MaxConns)
}

func (c PoolConfig) connect(ctx context.Context, url string, conns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	cfg.MaxConns = conns
	if c.Serving {
		cfg.MinConns = max(cfg.MinConns, 1)
	}
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	// A connection that has been idle is asked whether it is there still. When the host of PostgreSQL is gone no one
	// answers, nor refuses, and the kernel tries on for a quarter of an hour.
	if cfg.PingTimeout <= 0 {
		cfg.PingTimeout = idleAnswer
	}
	cfg.ConnConfig.OnPgError = keepAfter
	params := cfg.ConnConfig.RuntimeParams
	setUnlessGiven(params, "application_name", "tranche")
	if c.TransactionPooler {
		forTransactions(params)
		// It asks PostgreSQL for the types of parameters once: without them, maps and ids cannot be written.
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		for name, value := range c.settings() {
			setUnlessGiven(params, name, value)
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	return pool, err
}

// readOnly is the error code of a write to a server that takes none.
const readOnly = "25006"

// keepAfter reports whether a connection is of use after an error. One to a server that has become a standby is not:
// the next one may lead to its successor.
func keepAfter(_ *pgconn.PgConn, e *pgconn.PgError) bool {
	return e.Code != readOnly && e.SeverityUnlocalized != "FATAL" // as pgconn has it
}

// settings are what statements run by.
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
		// Statements look at a few rows of tables that may be large, which the planner takes for many: it would compile
		// them for seconds, each time, to have them done in a millisecond.
		"jit": "off",
		// Statements go by what others have committed as they wait for them.
		"default_transaction_isolation": "read committed",
	}
}

// ping is how [Open] sees that PostgreSQL answers: one that took a connection and has gone silent must not hold it up.
func ping(ctx context.Context, conn *pgxpool.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	return conn.Ping(ctx)
}

// setUnlessGiven leaves alone what the URL says.
func setUnlessGiven(params map[string]string, name, value string) {
	if _, given := params[name]; !given {
		params[name] = value
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// backendPID is asked in a transaction: a pooler that hands out connections per statement refuses that.
const backendPID = `SELECT pg_backend_pid(), current_setting('default_transaction_isolation') <> 'read committed'`

// pooled reports whether someone who hands out connections stands between us and PostgreSQL. The process that a client
// is told of, for what it may want to cancel, is PostgreSQL's own then only by chance: a pooler makes it up. A pooler
// by session counts as well; what is fit for the one by transaction works with it. otherIsolation is whether statements
// of ours would not read what is committed, unless they say so.
func pooled(ctx context.Context, url string) (behind, otherIsolation bool, err error) {
	cfg, err := pgxpool.ParseConfig(url) // which keeps settings of pools from the server
	if err != nil {
		return false, false, err
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

// forTransactions takes from the parameters of a connection what a pooler would not hand on, and returns it.
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

// transactionSettings returns the statement that follows the BEGIN of each transaction, in the same flush. Whoever gets
// a pooler's connection next would have the settings of a session. What the URL says goes before our own. Its argument
// is when no one waits any more ([pg.Until]): what a client gives up, a pooler may not get cancelled.
func (c PoolConfig) transactionSettings(url string) string {
	all := c.settings()
	if cfg, err := pgxpool.ParseConfig(url); err == nil { // as it was when the pool was made of it
		maps.Copy(all, forTransactions(cfg.ConnConfig.RuntimeParams))
	}
	delete(all, "default_transaction_isolation") // a transaction has begun by then: see [pg.Begin]
	set := []string{
		"set_config('statement_timeout', coalesce(nullif(current_setting('statement_timeout'), '0'), $1), true)",
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		set = append(set, "set_config('"+name+"', '"+strings.ReplaceAll(all[name], "'", "''")+"', true)")
	}
	return "SELECT " + strings.Join(set, ", ")
}

// PoolerRemedy adds to an error what to do when it says that a pooler stands in between that is not set up for us, or
// was not recognised as one. Other errors are returned as they are.
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
		return fmt.Errorf("a pooler by transaction seems to stand in between; say so by --transaction-pooler: %w", err)
	}
	return err
}

// Coming reports whether an error says that PostgreSQL cannot be used yet, and in what words: it starts up, recovers
// or shuts down, has no connection left, takes no writes, or no one answers where it should be. That may pass by
// itself. What is wrong with who asks, or for what (a password, the name of a database, TLS), does not.
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
		return "", false // files that it names are read then, too
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
		io.EOF, io.ErrUnexpectedEOF, // killed as it answered; or a proxy before one that is not up
	} {
		if errors.Is(err, passing) {
			return "does not answer", true
		}
	}
	return "", false
}

// comingByCode goes by SQLSTATE.
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
	case "08000", "08001", "08003", "08006": // connections that were lost or could not be made, say poolers
		return "does not answer", true
	}
	return "", false
}

// comingByPooler goes by what PgBouncer says of its own failures, which have the SQLSTATE of a protocol violation, one
// and all: also that it knows no such database. Those that pass bear the names of its settings.
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
