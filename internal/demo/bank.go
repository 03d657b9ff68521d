package demo

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

// BankDatabase is where the bank is.
const BankDatabase = "bank"

// pgbench clients: enough to keep two cores busy.
const clients = 4

// bank is pgbench's database: pgbench_accounts, pgbench_branches, pgbench_tellers and pgbench_history.
type bank struct {
	url      string
	programs string   // the directory of pgbench and psql
	env      []string // how they find the bank
}

func newBank(url, programs string) (*bank, error) {
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("URL of the bank: %w", err)
	}
	// The password is not for other users' process lists; the environment is.
	return &bank{url: url, programs: programs, env: []string{
		"PGHOST=" + config.Host, "PGPORT=" + strconv.Itoa(int(config.Port)), "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGDATABASE=" + config.Database, "PGSSLMODE=disable",
		// The bank is made up and gone soon: it need not survive a crash of the machine.
		"PGOPTIONS=-c synchronous_commit=off",
	}}, nil
}

// program is one of PostgreSQL's client programs, set to work on the bank.
func (b *bank) program(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	path := filepath.Join(b.programs, name)
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is missing; it comes with PostgreSQL's client or contrib package", name)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = environment(b.env...)
	return cmd, nil
}

func (b *bank) run(ctx context.Context, name string, args ...string) error {
	cmd, err := b.program(ctx, name, args...)
	if err != nil {
		return err
	}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return commandError(name, exitOK, err, string(out))
	}
	return nil
}

// create fills the database with accounts, all with balance 0.
func (b *bank) create(ctx context.Context, scale int) error {
	return b.run(ctx, "pgbench", initArgs(scale)...)
}

// year runs transactions of pgbench's own kind, about as many as told. The history of the year before is dropped: that
// is pgbench's habit at every start.
func (b *bank) year(ctx context.Context, transactions int) error {
	return b.run(ctx, "pgbench", yearArgs(transactions)...)
}

// years runs two years; the last one's closing balances are kept for the proof.
func (b *bank) years(ctx context.Context, last, this int) error {
	if err := b.year(ctx, last); err != nil {
		return err
	}
	if err := b.closeYear(ctx); err != nil {
		return err
	}
	return b.year(ctx, this)
}

func initArgs(scale int) []string { return []string{"-i", "-q", "-s", strconv.Itoa(scale)} }

func yearArgs(transactions int) []string {
	each := max(transactions/clients, 1)
	return []string{"-c", strconv.Itoa(clients), "-j", "2", "-t", strconv.Itoa(each)}
}

// with runs fn on a connection to the bank.
func (b *bank) with(ctx context.Context, what string, fn func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, b.url)
	if err == nil {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		err = fn(conn)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

const (
	// keepClosing remembers how the year before ended, for the proof.
	keepClosing = `CREATE TABLE last_year AS SELECT aid, abalance AS closing FROM pgbench_accounts`
	// indexHistory is what a bank would have that looks movements up by account; pgbench does not make it.
	indexHistory = `CREATE INDEX ON pgbench_history (aid)`
)

func (b *bank) closeYear(ctx context.Context) error {
	return b.with(ctx, "close the bank's last year", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, keepClosing)
		return err
	})
}

func (b *bank) prepare(ctx context.Context) error {
	return b.with(ctx, "index the bank's history", func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, indexHistory); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `ANALYZE`)
		return err
	})
}
