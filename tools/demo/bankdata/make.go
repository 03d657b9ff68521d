package bankdata

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/examples/bank"
)

// accountsPerScale is pgbench's.
const accountsPerScale = 100_000

// PgbenchArgs are pgbench's arguments to make the accounts.
func (b *Bank) PgbenchArgs() []string {
	scale := (b.config.Accounts + accountsPerScale - 1) / accountsPerScale
	return []string{"-i", "-q", "-s", strconv.Itoa(scale)}
}

// MakeAccounts has pgbench make the accounts. Nobody owns them yet.
func (b *Bank) MakeAccounts(ctx context.Context) error {
	cmd, err := b.Program(ctx, Accounts, "pgbench", b.PgbenchArgs()...)
	if err != nil {
		return err
	}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("pgbench: %w: %s", err, out)
	}
	return nil
}

// MakeYear makes the year's movements, the owners of the accounts with what the movements left on them, and the
// branches that look after them. It returns how many movements there are.
func (b *Bank) MakeYear(ctx context.Context) (movements int64, err error) {
	group, ctx2 := errgroup.WithContext(ctx)
	group.Go(func() error { return b.fill(ctx2, Transactions, createMovements) })
	group.Go(func() error { return b.fill(ctx2, Branches, createBranches) })
	group.Go(func() error { return b.fill(ctx2, Statements, "") })
	group.Go(func() error { return b.fill(ctx2, Mail, "") })
	if err := group.Wait(); err != nil {
		return 0, err
	}
	if err := b.post(ctx); err != nil {
		return 0, err
	}
	books, err := b.totals(ctx)
	return books.Movements, err
}

// fill makes the ledger and the tables of a database.
func (b *Bank) fill(ctx context.Context, database, sql string) error {
	return b.with(ctx, database, "make the database "+database, func(conn *pgx.Conn) error {
		return b.script(ctx, conn, bank.CreateLedger, sql)
	})
}

func (b *Bank) script(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	_, err := conn.Exec(ctx, `SELECT set_config('bank.accounts', $1, false)`, strconv.Itoa(b.config.Accounts))
	if err != nil {
		return err
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// post takes what the movements add up to into the accounts.
func (b *Bank) post(ctx context.Context) error {
	return b.with(ctx, Transactions, "post the year's movements", func(from *pgx.Conn) error {
		return b.with(ctx, Accounts, "give the accounts owners", func(to *pgx.Conn) error {
			if err := b.script(ctx, to, bank.CreateLedger, createMoved); err != nil {
				return err
			}
			if err := pipe(ctx, from, to); err != nil {
				return err
			}
			return b.script(ctx, to, createAccounts)
		})
	})
}

// pipe copies the sums from one database to the other.
func pipe(ctx context.Context, from, to *pgx.Conn) error {
	r, w := io.Pipe()
	var group errgroup.Group
	group.Go(func() error {
		_, err := from.PgConn().CopyTo(ctx, w, copyMoved)
		return w.CloseWithError(err)
	})
	_, err := to.PgConn().CopyFrom(ctx, r, pasteMoved)
	_ = r.CloseWithError(err) // the writer ends, too
	if waited := group.Wait(); err == nil {
		err = waited
	}
	return err
}
