package bankdata_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/tools/demo/bankdata"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const accounts = 120

// testBank is a small bank in databases of the test's own.
type testBank struct {
	*bankdata.Bank
	pools map[string]*pgxpool.Pool
}

func smallBank(t *testing.T) *testBank {
	t.Helper()
	urls, b := map[string]string{}, &testBank{pools: map[string]*pgxpool.Pool{}}
	for _, database := range bankdata.Databases() {
		urls[database] = testenv.Database(t)
		b.pools[database] = testenv.Connect(t, urls[database])
	}
	b.Bank = bankdata.New(bankdata.Config{URL: func(name string) string { return urls[name] }, Accounts: accounts})
	// What pgbench leaves, on a scale that is quick to look at.
	_, err := b.pools[bankdata.Accounts].Exec(t.Context(),
		`CREATE TABLE pgbench_accounts AS SELECT aid, 1 AS bid FROM generate_series(1, 200) aid`)
	must(t, err)
	movements, err := b.MakeYear(t.Context())
	must(t, err)
	if want := int64(accounts / 5 * (4*24 + 14)); movements != want {
		t.Fatalf("%d movements, want %d", movements, want)
	}
	return b
}

func (b *testBank) number(t *testing.T, database, sql string) int64 {
	t.Helper()
	var n int64
	must(t, b.pools[database].QueryRow(t.Context(), sql).Scan(&n))
	return n
}

// fingerprint changes with any value of the bank.
func (b *testBank) fingerprint(t *testing.T) [3]int64 {
	t.Helper()
	return [3]int64{
		b.number(t, bankdata.Accounts, `SELECT sum(hashtextextended(a::text, 1) % 1000003)::bigint FROM account a`),
		b.number(t, bankdata.Transactions, `SELECT sum(hashtextextended(m::text, 2) % 1000003)::bigint FROM movement m`),
		b.number(t, bankdata.Branches, `SELECT sum(hashtextextended(c::text, 3) % 1000003)::bigint FROM customer c`),
	}
}

func TestTheBankIsWholeAndAlwaysTheSame(t *testing.T) {
	t.Parallel()
	b, other := smallBank(t), smallBank(t)
	if b.fingerprint(t) != other.fingerprint(t) {
		t.Error("two banks of a size differ")
	}
	books, err := b.Books(t.Context())
	must(t, err)
	var opening, closing int64
	for i := range books.Opening {
		opening += books.Opening[i]
		closing += books.Closing[i]
	}
	if opening+books.In-books.Out != closing {
		t.Errorf("%d + %d - %d do not make %d", opening, books.In, books.Out, closing)
	}
	for database, gaps := range map[string]string{
		bankdata.Accounts: `SELECT count(*) FROM account a WHERE a IS NULL OR owner ~ '\s{2}|^\s' OR place ~ '^\s'`,
		bankdata.Transactions: `SELECT count(*) FROM movement m
			WHERE amount IS NULL OR amount = 0 OR date_part('year', booked) <> 2025`,
		bankdata.Branches: `SELECT count(*) FROM customer LEFT JOIN branch ON branch = id WHERE id IS NULL OR adviser IS NULL
			OR name ~ '^\s'`,
	} {
		if n := b.number(t, database, gaps); n != 0 {
			t.Errorf("%s: %d rows with a gap", database, n)
		}
	}
}

func TestRepairUndoesDamage(t *testing.T) {
	t.Parallel()
	b := smallBank(t)
	before := b.fingerprint(t)
	damage, err := b.Hurt(t.Context())
	must(t, err)
	hurt := b.fingerprint(t)
	for i := range before {
		if hurt[i] == before[i] {
			t.Errorf("%s was not hurt", bankdata.Databases()[i])
		}
	}
	must(t, b.Repair(t.Context(), damage))
	if b.fingerprint(t) != before {
		t.Error("the repair left something different")
	}
	if err := b.Repair(t.Context(), damage); err == nil || !strings.Contains(err.Error(), bank.CodeNoBalance) {
		t.Errorf("a second repair had something to do: %v", err)
	}

	lost, err := b.LoseAmounts(t.Context(), []int32{3, 5, 8})
	must(t, err)
	if n := b.number(t, bankdata.Transactions,
		`SELECT count(DISTINCT account) FROM movement WHERE amount IS NULL`); n != 3 || len(lost) != 3 {
		t.Errorf("%d accounts and %d wounds, want 3", n, len(lost))
	}
	must(t, b.FindAmounts(t.Context(), lost))
	if b.fingerprint(t) != before {
		t.Error("the amounts found are others")
	}
	if _, err := b.LoseAmounts(t.Context(), []int32{3, accounts + 1}); err == nil {
		t.Error("an account without movements lost one")
	}
}

func TestLedgersAreReadFromAMark(t *testing.T) {
	t.Parallel()
	b := smallBank(t)
	ledger := bank.NewLedger(b.pools[bankdata.Branches])
	must(t, ledger.Write(t.Context(), 1, 2, 3))
	mark, err := b.Mark(t.Context())
	must(t, err)
	must(t, ledger.Write(t.Context(), 7, 8, 8))
	since, err := b.Since(t.Context(), mark, []int32{7})
	must(t, err)
	if got, want := since[bankdata.Branches], (bankdata.Asked{Times: 3, Accounts: 2, Others: 2}); got != want {
		t.Errorf("the ledger has %+v, want %+v", got, want)
	}
	if got := since[bankdata.Accounts]; got != (bankdata.Asked{}) {
		t.Errorf("another ledger has %+v", got)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	t.Parallel()
	b := bankdata.New(bankdata.Config{URL: func(name string) string { return "postgres://127.0.0.1/" + name }})
	_, err := b.Program(context.Background(), bankdata.Accounts, "pgbench-of-nowhere")
	if err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("got %v, want an error that says what is missing", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
