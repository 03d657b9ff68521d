package connections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	// DefaultSourceConnections is the default limit on a node's connections to a source.
	DefaultSourceConnections = 4

	// For opening a connection to a source, and for keeping an idle one.
	sourceConnectTimeout = 5 * time.Second
	sourceIdleTime       = time.Minute
)

// Source is a database that plans and uploads may query. Its limits apply per query; zero means the query's default.
type Source struct {
	Name           string
	DSN            elsewhere          `json:"dsn"`
	MaxConnections int                `json:"max_connections" min:"1" max:"1000" doc:"of this node to the database (4)"`
	MaxRows        int                `json:"max_rows" min:"1" max:"1000000000"`
	MaxBytes       workqueue.Bytes    `json:"max_bytes" min:"1KiB" max:"1TiB" doc:"of a query's rows"`
	MaxTime        workqueue.Duration `json:"max_time" min:"1ms" max:"24h"`
	// TransactionPooler means that connections go through a pooler in transaction mode.
	TransactionPooler bool `json:"transaction_pooler"`
	AllowSuperuser    bool `json:"allow_superuser"`

	server server
}

// server is the role of a node, and its database's cluster; empty: unknown.
type server struct {
	role    string
	cluster int64
}

var errNoDSN = errors.New("it is not a connection string of PostgreSQL; want one like " +
	"postgres://USER:PASSWORD@HOST/DATABASE")

func (r *reader) source(at, name string, s *Source) error {
	s.Name = name
	s.MaxConnections = cmp.Or(s.MaxConnections, DefaultSourceConnections)
	if err := r.name(at, name); err != nil {
		return err
	}
	if !r.Given(at + ".dsn") {
		return r.Fail(at, "it has no dsn; say where one is, like dsn: {env: VARIABLE}")
	}
	if err := r.text(at+".dsn", &s.DSN.origin); err != nil {
		return err
	}
	if _, err := s.config(); err != nil {
		return r.Fail(at+".dsn", "%v", err)
	}
	return nil
}

// config returns how to connect. Sessions are read-only by default, and each transaction sets that again.
func (s *Source) config() (*pgxpool.Config, error) {
	dsn, err := s.DSN.read()
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errNoDSN // without the cause, which quotes the text
	}
	cfg.MaxConns = int32(s.MaxConnections)
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	cfg.MaxConnIdleTime = sourceIdleTime
	cc := cfg.ConnConfig
	cc.ConnectTimeout = sourceConnectTimeout
	cc.RuntimeParams["application_name"] = "tranche source " + s.Name
	if s.TransactionPooler {
		cc.DefaultQueryExecMode = pgx.QueryExecModeExec
		return cfg, nil
	}
	cc.RuntimeParams["default_transaction_read_only"] = "on"
	return cfg, nil
}

// Connect opens a connection outside the pool, with settings adjusted by prepare, and begins a transaction as Begin
// does. The caller closes it.
func (s *Source) Connect(
	ctx context.Context, limit time.Duration, prepare func(*pgx.ConnConfig),
) (*pgx.Conn, error) {
	cfg, err := s.config()
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", s.Name, err)
	}
	prepare(cfg.ConnConfig)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect to source %s: %w", s.Name, err)
	}
	if err = s.CheckRole(ctx, conn); err == nil {
		err = Begin(ctx, conn, limit)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// begin opens a read-only transaction with a time limit. Its text output is UTF-8 and independent of the settings of
// database and role. The lock timeout is short, because a waiting query would block others behind it. The settings
// are per transaction, for poolers.
const begin = `BEGIN READ ONLY; SET LOCAL statement_timeout = %[1]d; ` +
	`SET LOCAL idle_in_transaction_session_timeout = %[1]d; SET LOCAL lock_timeout = '5s'; ` +
	`SET LOCAL client_encoding = 'UTF8'; SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'; ` +
	`SET LOCAL intervalstyle = 'iso_8601'; ` +
	`SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1; SET LOCAL standard_conforming_strings = on`

// Begin begins a transaction for a query with a time limit.
func Begin(ctx context.Context, conn *pgx.Conn, limit time.Duration) error {
	_, err := conn.PgConn().Exec(ctx, fmt.Sprintf(begin, max(limit.Milliseconds(), 1))).ReadAll()
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	return nil
}

// Open returns a pool on the source that connects on demand: success does not mean that the database is reachable.
// The caller closes it.
func (s *Source) Open(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := s.config()
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", s.Name, err)
	}
	cfg.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		fresh, err := s.config() // the password may have changed
		if err == nil {
			cc.User, cc.Password = fresh.ConnConfig.User, fresh.ConnConfig.Password
		}
		return nil
	}
	cfg.AfterConnect = s.CheckRole
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", s.Name, err)
	}
	return pool, nil
}

// RoleError is returned for a source whose role has too many rights.
type RoleError struct{ Source, Role string }

func (e *RoleError) Error() string {
	return fmt.Sprintf("source %s: its role %q is a superuser, which no transaction keeps from doing harm, or may become "+
		"one, use the server's files or end sessions of nodes (pg_signal_backend, or the role that serves): use a role that "+
		"may only read, or say allow_superuser: true", e.Source, e.Role)
}

// A query can call set_config('role', …), so memberships and the session user count.
const readRole = `
SELECT session_user, EXISTS (SELECT FROM pg_catalog.pg_roles
    WHERE (rolsuper OR rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_signal_backend',
        'pg_write_server_files')
        OR rolname = $1 AND $2::bigint = (SELECT system_identifier FROM pg_catalog.pg_control_system()))
      AND pg_catalog.pg_has_role(session_user, oid, 'MEMBER'))`

// CheckRole refuses a superuser and roles that can become one, and those that may end the sessions of nodes: despite a
// read-only transaction they can run programs, read files and call pg_terminate_backend.
func (s *Source) CheckRole(ctx context.Context, conn *pgx.Conn) error {
	if s.AllowSuperuser {
		return nil
	}
	var role string
	var super bool
	err := conn.QueryRow(ctx, readRole, pgx.QueryExecModeExec, s.server.role, s.server.cluster).Scan(&role, &super)
	if err != nil {
		return fmt.Errorf("source %s: check its role: %w", s.Name, err)
	}
	if super {
		return &RoleError{s.Name, role}
	}
	return nil
}

// Explain describes a database error in one line without addresses and passwords.
func (s *Source) Explain(err error) string {
	if role, ok := errors.AsType[*RoleError](err); ok {
		return role.Error()
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	said, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case connecting && answered: // its text may contain addresses
		return fmt.Sprintf("source %s: its database refuses the connection (%s)", s.Name, said.Code)
	case answered:
		return s.redact(fmt.Sprintf("source %s: %s (%s)", s.Name, said.Message, said.Code))
	case connecting:
		return fmt.Sprintf("source %s: its database cannot be reached", s.Name)
	}
	return s.redact(fmt.Sprintf("source %s: %v", s.Name, err))
}

func (s *Source) redact(text string) string {
	for _, dsn := range s.DSN.all() {
		text = hide(text, dsn, "[dsn]")
		if cfg, err := pgconn.ParseConfig(dsn); err == nil {
			text = hide(text, cfg.Password, "[password]")
		}
	}
	return text
}
