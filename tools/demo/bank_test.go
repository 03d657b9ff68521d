package demo

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const testAccounts = 120

// testBank is a small bank in databases of the test's own.
type testBank struct {
	*sampleBank
	pools map[string]*pgxpool.Pool
}

func smallBank(t *testing.T) *testBank {
	t.Helper()
	urls, b := map[string]string{}, &testBank{pools: map[string]*pgxpool.Pool{}}
	for _, database := range databases() {
		urls[database] = testenv.Database(t)
		b.pools[database] = testenv.Connect(t, urls[database])
	}
	b.sampleBank = &sampleBank{url: func(name string) string { return urls[name] }, accounts: testAccounts}
	// What pgbench leaves, on a scale that is quick to look at.
	_, err := b.pools[accountsDB].Exec(t.Context(),
		`CREATE TABLE pgbench_accounts AS SELECT aid, 1 AS bid FROM generate_series(1, 200) aid`)
	must(t, err)
	movements, err := b.makeYear(t.Context())
	must(t, err)
	if want := int64(testAccounts / 5 * (4*24 + 14)); movements != want {
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
		b.number(t, accountsDB, `SELECT sum(hashtextextended(a::text, 1) % 1000003)::bigint FROM account a`),
		b.number(t, transactionsDB, `SELECT sum(hashtextextended(m::text, 2) % 1000003)::bigint FROM movement m`),
		b.number(t, branchesDB, `SELECT sum(hashtextextended(c::text, 3) % 1000003)::bigint FROM customer c`),
	}
}

func TestTheBankIsWholeAndAlwaysTheSame(t *testing.T) {
	t.Parallel()
	b, other := smallBank(t), smallBank(t)
	if b.fingerprint(t) != other.fingerprint(t) {
		t.Error("two banks of a size differ")
	}
	books, err := b.books(t.Context())
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
		accountsDB: `SELECT count(*) FROM account a WHERE a IS NULL OR owner ~ '\s{2}|^\s' OR place ~ '^\s'`,
		transactionsDB: `SELECT count(*) FROM movement m
			WHERE amount IS NULL OR amount = 0 OR date_part('year', booked) <> 2025`,
		branchesDB: `SELECT count(*) FROM customer LEFT JOIN branch ON branch = id WHERE id IS NULL OR adviser IS NULL
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
	damage, err := b.corruptThree(t.Context())
	must(t, err)
	hurt := b.fingerprint(t)
	for i := range before {
		if hurt[i] == before[i] {
			t.Errorf("%s was not hurt", databases()[i])
		}
	}
	must(t, b.repair(t.Context(), damage))
	if b.fingerprint(t) != before {
		t.Error("the repair left something different")
	}
	if err := b.repair(t.Context(), damage); err == nil || !strings.Contains(err.Error(), bank.CodeNoBalance) {
		t.Errorf("a second repair had something to do: %v", err)
	}

	lost, err := b.corrupt(t.Context(), lostAmount(), []int32{3, 5, 8})
	must(t, err)
	if n := b.number(t, transactionsDB,
		`SELECT count(DISTINCT account) FROM movement WHERE amount IS NULL`); n != 3 || len(lost) != 3 {
		t.Errorf("%d accounts and %d wounds, want 3", n, len(lost))
	}
	must(t, b.repair(t.Context(), lost))
	if b.fingerprint(t) != before {
		t.Error("the amounts found are others")
	}
	if _, err := b.corrupt(t.Context(), lostAmount(), []int32{3, testAccounts + 1}); err == nil {
		t.Error("an account without movements lost one")
	}
}

func TestLedgersAreReadFromAMark(t *testing.T) {
	t.Parallel()
	b := smallBank(t)
	ledger := bank.NewLedger(b.pools[branchesDB])
	must(t, ledger.Write(t.Context(), 1, 2, 3))
	mark, err := b.mark(t.Context())
	must(t, err)
	must(t, ledger.Write(t.Context(), 7, 8, 8))
	since, err := b.since(t.Context(), mark, []int32{7})
	must(t, err)
	if got, want := since[branchesDB], (ledgerCount{Times: 3, Accounts: 2, Others: 2}); got != want {
		t.Errorf("the ledger has %+v, want %+v", got, want)
	}
	if got := since[accountsDB]; got != (ledgerCount{}) {
		t.Errorf("another ledger has %+v", got)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	t.Parallel()
	b := &sampleBank{url: func(name string) string { return "postgres://127.0.0.1/" + name }}
	_, err := b.program(context.Background(), accountsDB, "pgbench-of-nowhere")
	if err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("got %v, want an error that says what is missing", err)
	}
}
