package database

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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
	// leader's duties.
	ReservedConns = 3 * reservedConns
	reservedConns = 2
)

// PoolConfig says how to connect. A zero field means its default.
type PoolConfig struct {
	MaxConns          int
	LockTimeout       time.Duration // a statement that waits longer for a lock fails, and its transaction with it
	IdleInTransaction time.Duration // PostgreSQL ends a transaction whose client has gone silent
	// ThroughPooler makes the store fit for a pooler that hands out connections per transaction: no prepared statements,
	// and no settings but those of a transaction. A pooler that makes itself known, as PgBouncer does, needs no word.
	ThroughPooler bool
	// Serving keeps a connection of each kind open: others may have taken all that PostgreSQL has when it is needed.
	Serving bool
}

// Open returns a store on the database at url. Sessions and leases, credentials (see [ForCredentials]) and duties (see
// [ForDuties]) have connections of their own, so that they go on while everything else waits for one. release closes
// all of them.
func Open(ctx context.Context, url string, cfg PoolConfig) (store *DB, release func(), err error) {
	behind, otherIsolation, err := pooled(ctx, url)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	cfg.ThroughPooler = cfg.ThroughPooler || behind
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
	store.Sessions, store.Pool.credentials, store.Pool.duties = pools[1], pools[2], pools[3]
	if cfg.ThroughPooler {
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
	// A connection that has been idle is asked whether it is there still. When the host of PostgreSQL is gone nobody
	// answers, nor refuses, and the kernel tries on for a quarter of an hour.
	if cfg.PingTimeout <= 0 {
		cfg.PingTimeout = idleAnswer
	}
	cfg.ConnConfig.OnPgError = keepAfter
	params := cfg.ConnConfig.RuntimeParams
	setUnlessGiven(params, "application_name", "tranche")
	if c.ThroughPooler {
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
