package demo

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/tools/demo/bankdata"
	"github.com/tranchehq/tranche/tools/demokit"
)

// proof compares what was exported with what the bank has.
type proof struct {
	file   string
	checks []demokit.Check
}

// verdict is an [UnequalError] unless everything holds.
func (p *proof) verdict() error {
	var differences []string
	for _, c := range p.checks {
		if !c.Holds() {
			differences = append(differences, c.Difference())
		}
	}
	if len(differences) > 0 {
		return &UnequalError{File: p.file, Differences: differences}
	}
	return nil
}

// exportedLine is what an export has of an item.
type exportedLine struct {
	Key         string             `json:"key"`
	State       string             `json:"state"`
	Result      *yearend.Statement `json:"result,omitempty"`
	ResultBytes []byte             `json:"result_bytes,omitempty"`
	ContentType string             `json:"content_type,omitempty"`
}

// prove reads the exported statements back and compares them with the bank, account by account and in total.
func prove(books *bankdata.Books, pdfs int, file string) (*proof, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the statements back: %w", err)
	}
	defer func() { _ = f.Close() }()
	t := tally{Books: books, seen: make([]bool, len(books.Closing))}
	lines := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for n := 1; ; n++ {
		var line exportedLine
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return t.proof(file, pdfs), nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the statements back: %s, line %d: %w", file, n, err)
		}
		t.add(line)
	}
}

// tally adds statements up.
type tally struct {
	*bankdata.Books
	seen                         []bool
	statements, openings, closed int64 // distinct accounts with a statement; with the right opening; the right closing
	pdfs                         int64
	sums                         bankdata.Totals
	noStatement                  string
	wrongOpening, wrongClosing   string
}

// statement is what a line says. Of a PDF it is what is printed.
func (l exportedLine) statement() (yearend.Statement, error) {
	switch {
	case l.State != "done" || l.Result == nil && l.ResultBytes == nil:
		return yearend.Statement{}, fmt.Errorf("account %s is %s", l.Key, l.State)
	case l.Result != nil:
		return *l.Result, nil
	case l.ContentType != yearend.ContentType:
		return yearend.Statement{}, fmt.Errorf("the statement of account %s is %s", l.Key, l.ContentType)
	}
	p, err := yearend.Read(l.ResultBytes)
	if err != nil {
		return yearend.Statement{}, fmt.Errorf("the PDF of account %s: %w", l.Key, err)
	}
	return yearend.Statement{
		Account: p.Account, Movements: p.Movements, Opening: p.Opening, In: p.In, Out: p.Out, Closing: p.Closing,
	}, nil
}

func (t *tally) add(line exportedLine) {
	s, err := line.statement()
	if err != nil {
		note(&t.noStatement, "%v", err)
		return
	}
	i := int(s.Account) - 1
	if line.Key != fmt.Sprint(s.Account) || i < 0 || i >= len(t.seen) || t.seen[i] {
		note(&t.noStatement, "account %s has the statement of account %d, or two", line.Key, s.Account)
		return
	}
	t.seen[i] = true
	t.statements++
	if line.ResultBytes != nil {
		t.pdfs++
	}
	t.sums.Movements += s.Movements
	t.sums.In += s.In
	t.sums.Out += s.Out
	if s.Closing == t.Closing[i] {
		t.closed++
	} else {
		note(&t.wrongClosing, "account %d: %d, the bank has %d", s.Account, s.Closing, t.Closing[i])
	}
	switch {
	case s.Opening+s.In-s.Out != s.Closing:
		note(&t.wrongOpening, "account %d: %d + %d - %d do not make %d", s.Account, s.Opening, s.In, s.Out, s.Closing)
	case s.Opening != t.Opening[i]:
		note(&t.wrongOpening, "account %d: %d, the bank had %d", s.Account, s.Opening, t.Opening[i])
	default:
		t.openings++
	}
}

// note keeps the first text.
func note(kept *string, format string, args ...any) {
	if *kept == "" {
		*kept = fmt.Sprintf(format, args...)
	}
}

func (t *tally) proof(file string, pdfs int) *proof {
	accounts := int64(len(t.Closing))
	return &proof{file: file, checks: []demokit.Check{
		{Left: "statements", Got: t.statements, Want: accounts, Right: "accounts", FirstWrong: t.noStatement},
		{Left: "of them PDFs", Got: t.pdfs, Want: int64(pdfs), Right: "asked for"},
		{Left: "movements", Got: t.sums.Movements, Want: t.Movements, Right: "in the bank's books"},
		{Left: "money in, in cents", Got: t.sums.In, Want: t.In, Right: "in the bank's books"},
		{Left: "money out, in cents", Got: t.sums.Out, Want: t.Out, Right: "in the bank's books"},
		{Left: "openings equal", Got: t.openings, Want: accounts, Right: "accounts", FirstWrong: t.wrongOpening},
		{Left: "closings equal", Got: t.closed, Want: accounts, Right: "accounts", FirstWrong: t.wrongClosing},
	}}
}
