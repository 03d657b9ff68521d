package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/demokit"
)

// TestProof shows that the proof holds for what the bank has, and fails for any difference, which it names. Account 3
// has a PDF, account 30 has JSON.
func TestProof(t *testing.T) {
	t.Parallel()
	// inPDF changes the parts before account 3 is drawn.
	inPDF := func(change func(*yearend.Parts)) func(int, *yearend.Parts, *exportedLine) *exportedLine {
		return func(account int, p *yearend.Parts, line *exportedLine) *exportedLine {
			if account == 3 {
				change(p)
				return lineOf(t, p, true)
			}
			return line
		}
	}
	inJSON := func(change func(*exportedLine) *exportedLine) func(int, *yearend.Parts, *exportedLine) *exportedLine {
		return func(account int, _ *yearend.Parts, line *exportedLine) *exportedLine {
			if account == 30 {
				return change(line)
			}
			return line
		}
	}
	for _, test := range []struct {
		name   string
		tamper func(int, *yearend.Parts, *exportedLine) *exportedLine
		want   []string // in the error; none: it holds
	}{
		{"nothing", func(_ int, _ *yearend.Parts, line *exportedLine) *exportedLine { return line }, nil},
		{"a closing balance", inJSON(func(l *exportedLine) *exportedLine {
			l.Result.Closing++
			l.Result.Opening++
			return l
		}), []string{"closings equal 39, but 40", "openings equal 39"}},
		{"an opening balance", inJSON(func(l *exportedLine) *exportedLine {
			l.Result.Opening--
			return l
		}), []string{"openings equal 39", "do not make"}},
		{"an amount that is printed", inPDF(func(p *yearend.Parts) {
			p.Year.Months[3].In += 5
			p.Account.Closing += 5
		}), []string{"closings equal 39", "money in, in cents 28,005, but 28,000"}},
		{"movements that are printed", inPDF(func(p *yearend.Parts) {
			p.Year.Months[5] = bank.Month{Movements: 1, In: 9, Out: 9}
		}), []string{"movements 81, but 80", "money out"}},
		{"the PDF of someone else", inPDF(func(p *yearend.Parts) { p.Account.Number = "HS10 0150 0000 0039" }),
			[]string{"statements 39", "has the statement of account 39"}},
		{"a damaged PDF", func(account int, _ *yearend.Parts, l *exportedLine) *exportedLine {
			if account == 3 {
				l.ResultBytes = l.ResultBytes[:len(l.ResultBytes)/3]
			}
			return l
		}, []string{"statements 39", "the PDF of account 3"}},
		{"JSON instead of a PDF", func(account int, p *yearend.Parts, l *exportedLine) *exportedLine {
			if account == 3 {
				return lineOf(t, p, false)
			}
			return l
		}, []string{"of them PDFs 4, but 5"}},
		{"a statement missing", inJSON(func(*exportedLine) *exportedLine { return nil }),
			[]string{"statements 39, but 40 accounts"}},
		{"a statement of someone else", inJSON(func(l *exportedLine) *exportedLine {
			l.Result.Account++
			return l
		}), []string{"statements 39", "has the statement of account"}},
		{"a failed item", inJSON(func(l *exportedLine) *exportedLine {
			l.State, l.Result = "failed", nil
			return l
		}), []string{"statements 39", "is failed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			checks, err := prove(smallBooks(), smallPDFs, export(t, test.tamper))
			must(t, err)
			expectVerdict(t, verdict("f", checks), test.want)
		})
	}
}

func expectVerdict(t *testing.T, err error, want []string) {
	t.Helper()
	var unequal *demokit.UnequalError
	if (len(want) > 0) != errors.As(err, &unequal) || (len(want) == 0 && err != nil) {
		t.Fatalf("got %v, want differences %q", err, want)
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
}

func TestProofNeedsAWholeFile(t *testing.T) {
	t.Parallel()
	books := smallBooks()
	file := filepath.Join(t.TempDir(), statementsFile)
	if _, err := prove(books, 0, file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a file that is not there", err)
	}
	must(t, os.WriteFile(file, []byte(`{"key":"1","state":"done","resu`), 0o600))
	if _, err := prove(books, 0, file); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("got %v for half a line, want an error that names line 1", err)
	}
}

func TestMain(m *testing.M) { testenv.Main(m) }

// A small bank: the first accounts have their statement as a PDF.
const (
	smallAccounts = 40
	smallPDFs     = 5
)

// partsOf is what the services say of an account of the small bank.
func partsOf(account int) *yearend.Parts {
	p := &yearend.Parts{Account: bank.Account{
		Account: int32(account), Number: "HS10 0150 0000 00" + string(rune('0'+account/10)) + string(rune('0'+account%10)),
		Opening: int64(account) * 1000,
	}}
	p.Year.Year = bank.BusinessYear
	p.Year.Months[3] = bank.Month{Movements: 2, In: 700, Out: int64(account)}
	p.Account.Closing = p.Account.Opening + 700 - int64(account)
	return p
}

// smallBooks are what the small bank says.
func smallBooks() *bankBooks {
	books := &bankBooks{}
	for account := 1; account <= smallAccounts; account++ {
		p := partsOf(account)
		books.Opening = append(books.Opening, p.Account.Opening)
		books.Closing = append(books.Closing, p.Account.Closing)
		books.Movements += 2
		books.In += 700
		books.Out += int64(account)
	}
	return books
}

// export writes the statements that the bank should have, each after a test has had its way with it: a line that
// becomes nil is left out.
func export(t *testing.T, tamper func(account int, p *yearend.Parts, line *exportedLine) *exportedLine) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), statementsFile)
	file, err := os.Create(name)
	must(t, err)
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for account := 1; account <= smallAccounts; account++ {
		line := lineOf(t, partsOf(account), account <= smallPDFs)
		if line = tamper(account, partsOf(account), line); line != nil {
			must(t, encoder.Encode(line))
		}
	}
	must(t, out.Flush())
	must(t, file.Close())
	return name
}

func lineOf(t *testing.T, p *yearend.Parts, asPDF bool) *exportedLine {
	t.Helper()
	s, err := p.Statement()
	must(t, err)
	line := &exportedLine{Key: account(s), State: "done", Result: &s}
	if asPDF {
		line.Result, line.ContentType = nil, yearend.ContentType
		line.ResultBytes, err = p.PDF()
		must(t, err)
	}
	return line
}

func account(s yearend.Statement) string { return demokit.Grouped(int64(s.Account)) }

func must(t *testing.T, err error) {
	t.Helper()
	testenv.NoError(t, err)
}

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
