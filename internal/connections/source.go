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
	// DefaultSourceConnections is how many connections a node makes to a source unless the file says otherwise.
	DefaultSourceConnections = 4

	// One connection to a source; how long one without work is kept.
	sourceConnectTimeout = 5 * time.Second
	sourceIdleTime       = time.Minute
)

// Source is a database that plans and uploads may query. Its limits hold for each query; one that is zero was not
// given, and whoever queries has a default.
type Source struct {
	Name           string
	DSN            elsewhere          `json:"dsn"`
	MaxConnections int                `json:"max_connections" min:"1" max:"1000"` // of this node
	MaxRows        int                `json:"max_rows" min:"1" max:"1000000000"`
	MaxBytes       workqueue.Bytes    `json:"max_bytes" min:"1KiB" max:"1TiB"` // of what the rows contain
	MaxTime        workqueue.Duration `json:"max_time" min:"1ms" max:"24h"`
	// TransactionPooler says that a pooler which hands out connections by transaction stands in between.
	TransactionPooler bool `json:"transaction_pooler"`
	AllowSuperuser    bool `json:"allow_superuser"`
}

var errNoDSN = errors.New("it is no connection string of PostgreSQL; want one like " +
	"postgres://USER:PASSWORD@HOST/DATABASE")

func (r *reader) source(at, name string, s *Source) error {
	s.Name = name
	s.MaxConnections = cmp.Or(s.MaxConnections, DefaultSourceConnections)
	if err := r.name(at, name); err != nil {
		return err
	}
	if !r.Given(at + ".dsn") {
		return r.Fail(at, "it has no dsn; say where one stands, like dsn: {env: VARIABLE}")
	}
	if err := r.text(at+".dsn", &s.DSN.origin); err != nil {
		return err
	}
	if _, err := s.config(); err != nil {
		return r.Fail(at+".dsn", "%v", err)
	}
	return nil
}

// config says how to connect. Sessions only read unless they say otherwise, and what uses a source says so again in
// each transaction.
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

// Connect makes one connection, which counts in no pool, with what prepare makes of its settings, and begins a
// transaction on it as Begin does. The caller closes it.
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

// begin opens a transaction in which a query can only read, and not for longer than it may. Its texts are the same
// whatever the database and the role have set, and in UTF-8. It waits for no lock of others for long, which would hold
// up theirs. A pooler takes settings in a transaction only.
const begin = `BEGIN READ ONLY; SET LOCAL statement_timeout = %[1]d; ` +
	`SET LOCAL idle_in_transaction_session_timeout = %[1]d; SET LOCAL lock_timeout = '5s'; ` +
	`SET LOCAL client_encoding = 'UTF8'; SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'; ` +
	`SET LOCAL intervalstyle = 'iso_8601'; ` +
	`SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1; SET LOCAL standard_conforming_strings = on`

// Begin begins a transaction for a query to a source, which may take so long.
func Begin(ctx context.Context, conn *pgx.Conn, limit time.Duration) error {
	_, err := conn.PgConn().Exec(ctx, fmt.Sprintf(begin, max(limit.Milliseconds(), 1))).ReadAll()
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	return nil
}

// Open returns a pool on the source, whose connections are made when they are needed: no error does not mean that
// the database is there. Whoever opens it closes it.
func (s *Source) Open(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := s.config()
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", s.Name, err)
	}
	cfg.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		fresh, err := s.config() // a password may have been changed
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

// RoleError says that a source's role can do more than a source is for.
type RoleError struct{ Source, Role string }

func (e *RoleError) Error() string {
	return fmt.Sprintf("source %s: its role %q is a superuser, which no transaction keeps from doing harm, or may become "+
		"one or use the server's files: use a role that may only read, or say allow_superuser: true", e.Source, e.Role)
}

// A query can call set_config('role', …), so what the role is a member of counts, and whoever logged in.
const readRole = `
SELECT session_user, EXISTS (SELECT FROM pg_catalog.pg_roles
    WHERE (rolsuper OR rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files'))
      AND pg_catalog.pg_has_role(session_user, oid, 'MEMBER'))`

// CheckRole refuses a superuser, and what may become one: beside what a read-only transaction forbids it may run
// programs and read files.
func (s *Source) CheckRole(ctx context.Context, conn *pgx.Conn) error {
	if s.AllowSuperuser {
		return nil
	}
	var role string
	var super bool
	if err := conn.QueryRow(ctx, readRole, pgx.QueryExecModeExec).Scan(&role, &super); err != nil {
		return fmt.Errorf("source %s: look at its role: %w", s.Name, err)
	}
	if super {
		return &RoleError{s.Name, role}
	}
	return nil
}

// Explain says an error of the source's database in a line that contains neither addresses nor passwords.
func (s *Source) Explain(err error) string {
	if role, ok := errors.AsType[*RoleError](err); ok {
		return role.Error()
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	said, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case connecting && answered: // its words may hold addresses
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
