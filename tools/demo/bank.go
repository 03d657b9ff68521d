package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/examples/bank"
)

// The databases, one per service. statementsDB has the composing node's ledger, mailDB the mail service's.
const (
	accountsDB     = "accounts"
	transactionsDB = "transactions"
	branchesDB     = "branches"
	statementsDB   = "statements"
	mailDB         = "mail"
)

func databases() []string {
	return []string{accountsDB, transactionsDB, branchesDB, statementsDB, mailDB}
}

// sampleBank is the demo's databases. Banks of one size are identical. Not safe for concurrent use.
type sampleBank struct {
	url         func(database string) string
	programs    string // the directory of psql and pgbench; otherwise they are looked up on the PATH
	environment []string
	accounts    int
}

// env leads a program to a database. Unlike arguments, the environment is not visible to other users.
func (b *sampleBank) env(database string) ([]string, error) {
	config, err := pgconn.ParseConfig(b.url(database))
	if err != nil {
		return nil, fmt.Errorf("URL of database %s: %w", database, err)
	}
	return []string{
		"PGHOST=" + config.Host, "PGPORT=" + strconv.Itoa(int(config.Port)), "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGDATABASE=" + config.Database, "PGSSLMODE=disable",
		// The bank need not survive a crash.
		"PGOPTIONS=-c synchronous_commit=off",
	}, nil
}

func (b *sampleBank) program(ctx context.Context, database, name string, args ...string) (*exec.Cmd, error) {
	env, err := b.env(database)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(b.programs, name)
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is missing; it comes with PostgreSQL's client or contrib package", name)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(append([]string{}, b.environment...), env...)
	return cmd, nil
}

func (b *sampleBank) with(ctx context.Context, database, what string, fn func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, b.url(database))
	if err == nil {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		err = fn(conn)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// accountsPerScale is the number of accounts per unit of pgbench's scale.
const accountsPerScale = 100_000

func (b *sampleBank) pgbenchArgs() []string {
	scale := (b.accounts + accountsPerScale - 1) / accountsPerScale
	return []string{"-i", "-q", "-s", strconv.Itoa(scale)}
}

func (b *sampleBank) makeAccounts(ctx context.Context) error {
	cmd, err := b.program(ctx, accountsDB, "pgbench", b.pgbenchArgs()...)
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

// makeYear creates movements, owners, balances and branches. It returns the number of movements.
func (b *sampleBank) makeYear(ctx context.Context) (movements int64, err error) {
	group, ctx2 := errgroup.WithContext(ctx)
	group.Go(func() error { return b.fill(ctx2, transactionsDB, createMovements) })
	group.Go(func() error { return b.fill(ctx2, branchesDB, createBranches) })
	group.Go(func() error { return b.fill(ctx2, statementsDB, "") })
	group.Go(func() error { return b.fill(ctx2, mailDB, "") })
	if err := group.Wait(); err != nil {
		return 0, err
	}
	if err := b.post(ctx); err != nil {
		return 0, err
	}
	books, err := b.totals(ctx)
	return books.Movements, err
}

func (b *sampleBank) fill(ctx context.Context, database, sql string) error {
	return b.with(ctx, database, "make the database "+database, func(conn *pgx.Conn) error {
		return b.script(ctx, conn, bank.CreateLedger, sql)
	})
}

func (b *sampleBank) script(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	_, err := conn.Exec(ctx, `SELECT set_config('bank.accounts', $1, false)`, strconv.Itoa(b.accounts))
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

// post adds the sums of the movements to the accounts.
func (b *sampleBank) post(ctx context.Context) error {
	return b.with(ctx, transactionsDB, "post the year's movements", func(from *pgx.Conn) error {
		return b.with(ctx, accountsDB, "give the accounts owners", func(to *pgx.Conn) error {
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

type bankBooks struct {
	Opening, Closing []int64 // of account i+1
	yearTotals
}

type yearTotals struct{ Movements, In, Out int64 }

const (
	// An account without a balance gets a value that no sum reaches.
	selectBalances = `SELECT id, coalesce(opening, -1::bigint << 62), coalesce(closing, -1::bigint << 62) FROM account`
	selectTotals   = `
SELECT count(*), coalesce(sum(amount) FILTER (WHERE amount > 0), 0)::bigint,
    coalesce(-sum(amount) FILTER (WHERE amount < 0), 0)::bigint
FROM movement`
)

func (b *sampleBank) totals(ctx context.Context) (t yearTotals, err error) {
	err = b.with(ctx, transactionsDB, "add the year's movements up", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, selectTotals).Scan(&t.Movements, &t.In, &t.Out)
	})
	return t, err
}

// books reads the books: 16 bytes per account.
func (b *sampleBank) books(ctx context.Context) (*bankBooks, error) {
	n := b.accounts
	all := &bankBooks{Opening: make([]int64, n), Closing: make([]int64, n)}
	var err error
	if all.yearTotals, err = b.totals(ctx); err != nil {
		return nil, err
	}
	err = b.with(ctx, accountsDB, "read the bank's balances", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectBalances)
		if err != nil {
			return err
		}
		seen := 0
		var account, opening, closing int64
		_, err = pgx.ForEachRow(rows, []any{&account, &opening, &closing}, func() error {
			if account < 1 || account > int64(n) {
				return fmt.Errorf("account %d is not one of the bank's", account)
			}
			seen++
			all.Opening[account-1], all.Closing[account-1] = opening, closing
			return nil
		})
		if err == nil && seen != n {
			err = fmt.Errorf("%d accounts instead of %d", seen, n)
		}
		return err
	})
	return all, err
}

type ledgerMark map[string]int64

type ledgerCount struct {
	Times    int64 // entries
	Accounts int64 // distinct accounts
	Others   int64 // entries for accounts other than those expected
}

const (
	selectMark  = `SELECT coalesce(max(n), 0) FROM asked`
	selectAsked = `
SELECT count(*), count(DISTINCT account), count(*) FILTER (WHERE account <> ALL($2::int[]))
FROM asked WHERE n > $1`
)

func (b *sampleBank) mark(ctx context.Context) (ledgerMark, error) {
	mark := ledgerMark{}
	for _, database := range databases() {
		err := b.with(ctx, database, "read the ledger of "+database, func(conn *pgx.Conn) error {
			var n int64
			err := conn.QueryRow(ctx, selectMark).Scan(&n)
			mark[database] = n
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return mark, nil
}

func (b *sampleBank) since(ctx context.Context, mark ledgerMark, accounts []int32) (map[string]ledgerCount, error) {
	since := map[string]ledgerCount{}
	for _, database := range databases() {
		err := b.with(ctx, database, "read the ledger of "+database, func(conn *pgx.Conn) error {
			var a ledgerCount
			err := conn.QueryRow(ctx, selectAsked, mark[database], accounts).Scan(&a.Times, &a.Accounts, &a.Others)
			since[database] = a
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return since, nil
}

// corruption is a way to damage accounts of one service. breaks takes accounts and returns each one's former value;
// repairs takes one account and its former value.
type corruption struct {
	database, code  string // code is the service's error code
	breaks, repairs string
}

type corruptedAccount struct {
	corruption

	account int32
	old     int64
}

const noBranch = 991

const (
	// Each returns the former values: old is the row as of the start of the statement.
	dropBalance = `
UPDATE account a SET closing = NULL FROM account old
WHERE a.id = ANY($1::int[]) AND old.id = a.id RETURNING old.id, old.closing`
	dropBranch = `
UPDATE customer c SET branch = 991 FROM customer old
WHERE c.account = ANY($1::int[]) AND old.account = c.account RETURNING old.account, old.branch`
	// dropAmounts removes one movement's amount per account. Movements have no key, but a ctid during the statement.
	dropAmounts = `
UPDATE movement m SET amount = NULL FROM (
    SELECT DISTINCT ON (account) ctid, account, amount FROM movement
    WHERE account = ANY($1::int[]) ORDER BY account, booked, amount
) old
WHERE m.ctid = old.ctid RETURNING old.account, old.amount`

	repairBalance = `UPDATE account SET closing = $2 WHERE id = $1 AND closing IS NULL`
	repairBranch  = `UPDATE customer SET branch = $2 WHERE account = $1 AND branch = 991`
	repairAmount  = `UPDATE movement SET amount = $2 WHERE account = $1 AND amount IS NULL`
)

func lostAmount() corruption {
	return corruption{transactionsDB, bank.CodeBrokenMovement, dropAmounts, repairAmount}
}

// corruptThree damages three accounts far from each other: a balance, a branch, and a movement's amount.
func (b *sampleBank) corruptThree(ctx context.Context) (three []corruptedAccount, err error) {
	n := b.accounts
	for _, c := range []struct {
		how corruption
		at  int
	}{
		{corruption{accountsDB, bank.CodeNoBalance, dropBalance, repairBalance}, n/6 + 1},
		{corruption{branchesDB, "not_found", dropBranch, repairBranch}, n/2 + 1}, // what nodes call a status 404
		{lostAmount(), n*5/6 + 1},
	} {
		corrupted, err := b.corrupt(ctx, c.how, []int32{int32(c.at)})
		if err != nil {
			return nil, err
		}
		three = append(three, corrupted...)
	}
	return three, nil
}

func (b *sampleBank) corrupt(
	ctx context.Context, how corruption, accounts []int32,
) (all []corruptedAccount, err error) {
	err = b.with(ctx, how.database, "corrupt accounts", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, how.breaks, accounts)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (corruptedAccount, error) {
			c := corruptedAccount{corruption: how}
			return c, row.Scan(&c.account, &c.old)
		})
		if err == nil && len(all) != len(accounts) {
			err = fmt.Errorf("%s: %d of %d accounts are there", how.code, len(all), len(accounts))
		}
		return err
	})
	return all, err
}

func (b *sampleBank) repair(ctx context.Context, all []corruptedAccount) error {
	for _, c := range all {
		err := b.with(ctx, c.database, "repair an account", func(conn *pgx.Conn) error {
			tag, err := conn.Exec(ctx, c.repairs, c.account, c.old)
			if err == nil && tag.RowsAffected() != 1 {
				err = fmt.Errorf("account %d (%s): %d rows changed, not 1", c.account, c.code, tag.RowsAffected())
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const branchOf = `SELECT branch FROM customer WHERE account = $1`

// tryYourself returns statements that assign an account to a branch that does not exist, and undo that.
func (b *sampleBank) tryYourself(ctx context.Context, account int32) (breaks, repairs string, err error) {
	var branch int64
	err = b.with(ctx, branchesDB, "find a customer's branch", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, branchOf, account).Scan(&branch)
	})
	const update = "UPDATE customer SET branch = %d WHERE account = %d"
	return fmt.Sprintf(update, noBranch, account), fmt.Sprintf(update, branch, account), err
}

// All data of an account derives from its number by hashing: banks of one size are identical.

const (
	// createMovements creates 22 movements for each of the accounts 1 to the setting bank.accounts. Every fifth is a
	// savings account: small monthly deposits, and withdrawals in July and December. The others have a monthly income
	// and spend 70% to 130% of it.
	createMovements = `
CREATE UNLOGGED TABLE movement AS
SELECT a AS account, make_date(2025, (k - 1) % 12 + 1, 1 + r % 28) AS booked,
    CASE WHEN a % 5 = 0 AND k <= 12 THEN base / 10 + r % 5000
         WHEN a % 5 = 0 THEN -base / 3
         WHEN k <= 12 THEN base + r % 16384
         ELSE -(base::bigint * (70 + r % 61) / 100) END::bigint AS amount
FROM generate_series(1, current_setting('bank.accounts')::int) a
CROSS JOIN LATERAL (SELECT 180000 + (hashint4extended(a, 1) & 262143)::int AS base) b
CROSS JOIN generate_series(1, 24) k
CROSS JOIN LATERAL (SELECT (hashint4extended(a * 32 + k, 2) & 1048575)::int AS r) h
WHERE a % 5 <> 0 OR k <= 12 OR k IN (19, 24);
CREATE INDEX ON movement (account);
ANALYZE movement`

	// copyMoved, createMoved and pasteMoved carry each account's sum to the database accounts, which keeps balances.
	copyMoved   = `COPY (SELECT account, sum(amount)::bigint FROM movement GROUP BY account) TO STDOUT BINARY`
	createMoved = `CREATE UNLOGGED TABLE moved (account int, sum bigint)`
	pasteMoved  = `COPY moved FROM STDIN BINARY`

	// createAccounts gives pgbench's accounts owners and balances.
	createAccounts = `
CREATE UNLOGGED TABLE account AS
WITH words AS (SELECT
    '{Ada,Amir,Bjørn,Carla,Chloé,David,Elin,Fatima,Georg,Hanna,Ines,Jón,Karim,Lena,Marek,Nadia,Olav,Priya,Quentin,Rosa,
      Sören,Tuva,Umar,Vera,Wanda,Xavier,Yasmin,Zoë}'::text[] AS first,
    '{Andersson,Bakker,Costa,Dahl,Eriksen,Fischer,García,Haugen,Ivanova,Jørgensen,Kowalski,Lindqvist,Müller,Nakamura,
      Okafor,Papadakis,Quist,Rossi,Solheim,Tanaka,Ueland,Vermeer,Weiß,Yilmaz,Østergård}'::text[] AS last,
    '{Anchor Street,Beacon Road,Chapel Lane,Dock Street,Elm Avenue,Ferry Road,Gull Lane,Harbour View,Island Road,
      Jetty Walk,Kelp Street,Lantern Lane,Mill Road,Northgate,Orchard Way,Pier Street,Quay Street,Rope Walk,Sail Lane,
      Tower Street}'::text[] AS street,
    '{Harbour,Eastport,Northgate,Saltmarsh,Fairhaven,Westbay,Stonepier,Lowmoor}'::text[] AS town
)
SELECT aid AS id,
    format('HS%s 0150 %s %s', 10 + h % 83, to_char(aid / 10000, 'FM0000'), to_char(aid % 10000, 'FM0000')) AS number,
    CASE WHEN aid % 5 = 0 THEN 'Savings account' ELSE 'Current account' END AS kind,
    date '1994-03-01' + h % 11000 AS opened,
    first[1 + h % 28] || ' ' || last[1 + h / 28 % 25] AS owner,
    street[1 + h / 700 % 20] || ' ' || 1 + h / 14000 % 90 AS street,
    to_char(150 + 110 * (h / 3 % 8), 'FM0000') || ' ' || town[1 + h / 3 % 8] AS place,
    opening, opening + coalesce(moved.sum, 0) AS closing
FROM words, pgbench_accounts
CROSS JOIN LATERAL (SELECT (hashint4extended(aid, 3) & 134217727)::int AS h) hashed
CROSS JOIN LATERAL (SELECT (50000 + (hashint4extended(aid, 4) & 1048575)) * CASE WHEN aid % 5 = 0 THEN 4 ELSE 1 END
    AS opening) begun
LEFT JOIN moved ON moved.account = aid
WHERE aid <= current_setting('bank.accounts')::int;
ALTER TABLE account ADD PRIMARY KEY (id);
DROP TABLE moved;
ANALYZE account`

	// createBranches creates two dozen branches and assigns the customers.
	createBranches = `
CREATE UNLOGGED TABLE branch AS
SELECT id::int, name, name || ' Street ' || 2 + id * 3 AS street,
    to_char(100 + 17 * id, 'FM0000') || ' Harbour' AS place, '+47 22 00 ' || to_char(id, 'FM00') || ' 00' AS phone
FROM unnest('{Anchor,Beacon,Castle,Dockside,Eastport,Ferry,Granary,Harbour,Island,Jetty,King''s,Lighthouse,Market,
    Northgate,Old Town,Pier,Quay,River,Southgate,Tower,University,Viaduct,Westbay,Yard}'::text[])
    WITH ORDINALITY AS b (name, id);
ALTER TABLE branch ADD PRIMARY KEY (id);
CREATE UNLOGGED TABLE customer AS
SELECT account, branch, ('{Aksel,Berit,Camilla,Daniel,Eva,Fredrik,Gro}'::text[])[1 + adviser % 7] || ' '
    || ('{Aas,Berg,Christensen,Dale,Evensen,Foss,Gran,Holm,Iversen,Juul,Krog}'::text[])[1 + adviser % 11] AS adviser
FROM generate_series(1, current_setting('bank.accounts')::int) account
CROSS JOIN LATERAL (SELECT (hashint4extended(account, 5) & 1048575)::int AS h) hashed
CROSS JOIN LATERAL (SELECT 1 + h % 24 AS branch, h % 24 * 3 + h / 24 % 3 AS adviser) found;
ALTER TABLE customer ADD PRIMARY KEY (account);
ANALYZE`
)
