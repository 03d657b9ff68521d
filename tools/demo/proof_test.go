package demo

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

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
			checks := testenv.Must(prove(smallBooks(), smallPDFs, export(t, test.tamper)))(t)
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
		testenv.Says(t, err, text, "the error")
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
	file := testenv.Must(os.Create(name))(t)
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for account := 1; account <= smallAccounts; account++ {
		line := lineOf(t, partsOf(account), account <= smallPDFs)
		if line = tamper(account, partsOf(account), line); line != nil {
			testenv.NoError(t, encoder.Encode(line))
		}
	}
	testenv.NoError(t, out.Flush())
	testenv.NoError(t, file.Close())
	return name
}

func lineOf(t *testing.T, p *yearend.Parts, asPDF bool) *exportedLine {
	t.Helper()
	s := testenv.Must(p.Statement())(t)
	line := &exportedLine{Key: account(s), State: "done", Result: &s}
	if asPDF {
		line.Result, line.ContentType = nil, yearend.ContentType
		line.ResultBytes = testenv.Must(p.PDF())(t)
	}
	return line
}

func account(s yearend.Statement) string { return demokit.Grouped(int64(s.Account)) }
