package demo

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/tools/demo/bankdata"
	"github.com/tranchehq/tranche/tools/demokit"
)

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
func smallBooks() *bankdata.Books {
	books := &bankdata.Books{}
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

// lineOf is an account's line of an export.
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
	if err != nil {
		t.Fatal(err)
	}
}
