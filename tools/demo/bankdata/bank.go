package bankdata

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The databases. Each service has its own; Statements has the ledger of those who compose,
// Mail that of those who post.
const (
	Accounts     = "accounts"
	Transactions = "transactions"
	Branches     = "branches"
	Statements   = "statements"
	Mail         = "mail"
)

// Databases are all of them.
func Databases() []string { return []string{Accounts, Transactions, Branches, Statements, Mail} }

// Config says where a bank is.
type Config struct {
	// URL returns where a database is.
	URL func(database string) string
	// Programs is the directory of psql and pgbench; they may also be on the PATH.
	Programs string
	// Environment is what the programs start with.
	Environment []string
	// Accounts is how many the bank has.
	Accounts int
}

// Bank is the databases of a bank.
type Bank struct{ config Config }

// New returns a bank whose databases exist and may be empty.
func New(config Config) *Bank { return &Bank{config: config} }

// Env is what leads a program of PostgreSQL, or a service, to a database. Environments are not for other users to see,
// as a password in a process list would be.
func (b *Bank) Env(database string) ([]string, error) {
	config, err := pgconn.ParseConfig(b.config.URL(database))
	if err != nil {
		return nil, fmt.Errorf("URL of database %s: %w", database, err)
	}
	return []string{
		"PGHOST=" + config.Host, "PGPORT=" + strconv.Itoa(int(config.Port)), "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGDATABASE=" + config.Database, "PGSSLMODE=disable",
		// The bank need not survive a crash of the machine.
		"PGOPTIONS=-c synchronous_commit=off",
	}, nil
}

// Program is one of PostgreSQL's client programs, set to work on a database.
func (b *Bank) Program(ctx context.Context, database, name string, args ...string) (*exec.Cmd, error) {
	env, err := b.Env(database)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(b.config.Programs, name)
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is missing; it comes with PostgreSQL's client or contrib package", name)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(append([]string{}, b.config.Environment...), env...)
	return cmd, nil
}

// with runs fn on a connection to a database.
func (b *Bank) with(ctx context.Context, database, what string, fn func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, b.config.URL(database))
	if err == nil {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		err = fn(conn)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
