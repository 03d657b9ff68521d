package demo

import (
	"cmp"
	"fmt"

	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/tools/demokit"
)

type exportedLine struct {
	Key         string             `json:"key"`
	State       string             `json:"state"`
	Result      *yearend.Statement `json:"result,omitempty"`
	ResultBytes []byte             `json:"result_bytes,omitempty"`
	ContentType string             `json:"content_type,omitempty"`
}

// prove compares the exported statements with the bank, by account and in total.
func prove(books *bankBooks, pdfs int, file string) ([]demokit.Check, error) {
	t := tally{bankBooks: books, seen: make([]bool, len(books.Closing))}
	err := demokit.EachLine(file, t.add)
	return t.checks(pdfs), err
}

type tally struct {
	*bankBooks
	seen                         []bool
	statements, openings, closed int64 // distinct accounts: with a statement, the right opening, the right closing
	pdfs                         int64
	sums                         yearTotals
	noStatement                  string
	wrongOpening, wrongClosing   string
}

// statement returns the statement of a line; that of a PDF is read from its text.
func (l *exportedLine) statement() (yearend.Statement, error) {
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

func (t *tally) add(line *exportedLine) {
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

func note(kept *string, format string, args ...any) {
	*kept = cmp.Or(*kept, fmt.Sprintf(format, args...))
}

func (t *tally) checks(pdfs int) []demokit.Check {
	accounts := int64(len(t.Closing))
	return []demokit.Check{
		{Left: "statements", Got: t.statements, Want: accounts, Right: "accounts", FirstWrong: t.noStatement},
		{Left: "of them PDFs", Got: t.pdfs, Want: int64(pdfs), Right: "requested"},
		{Left: "movements", Got: t.sums.Movements, Want: t.Movements, Right: "in the bank's books"},
		{Left: "money in, in cents", Got: t.sums.In, Want: t.In, Right: "in the bank's books"},
		{Left: "money out, in cents", Got: t.sums.Out, Want: t.Out, Right: "in the bank's books"},
		{Left: "openings equal", Got: t.openings, Want: accounts, Right: "accounts", FirstWrong: t.wrongOpening},
		{Left: "closings equal", Got: t.closed, Want: accounts, Right: "accounts", FirstWrong: t.wrongClosing},
	}
}
