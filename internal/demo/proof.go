package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/examples/statements"
)

// proof compares what was exported with what the bank has.
type proof struct {
	file   string
	checks []check
}

// check is one comparison of the statements, on the left, with the bank, on the right.
type check struct {
	left       string
	got, want  int64
	right      string
	firstWrong string // an example of what is unequal, where there is one
}

func (c check) holds() bool { return c.got == c.want && c.firstWrong == "" }

func (c check) difference() string {
	text := fmt.Sprintf("%s %s, but %s %s", c.left, grouped(c.got), grouped(c.want), c.right)
	if c.firstWrong != "" {
		text += " (" + c.firstWrong + ")"
	}
	return text
}

// verdict is an [UnequalError] unless everything holds.
func (p *proof) verdict() error {
	var differences []string
	for _, c := range p.checks {
		if !c.holds() {
			differences = append(differences, c.difference())
		}
	}
	if len(differences) > 0 {
		return &UnequalError{File: p.file, Differences: differences}
	}
	return nil
}

// books is what the bank says, its accounts by number.
type books struct {
	opening, closing []int64 // of account i+1
	movements, sum   int64
}

const (
	// An account without a balance has a value that no sum of ints can reach.
	selectBalances = `
SELECT a.aid, coalesce(a.abalance, -1::bigint << 62), coalesce(l.closing, -1::bigint << 62)
FROM pgbench_accounts a LEFT JOIN last_year l USING (aid)`
	selectHistory = `SELECT count(*), coalesce(sum(delta), 0) FROM pgbench_history`
)

// books reads the bank, which has n accounts: 16 bytes each.
func (b *bank) books(ctx context.Context, n int) (*books, error) {
	all := &books{opening: make([]int64, n), closing: make([]int64, n)}
	err := b.with(ctx, "read the bank's books", func(conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, selectHistory).Scan(&all.movements, &all.sum); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, selectBalances)
		if err != nil {
			return err
		}
		seen := 0
		var account, closing, opening int64
		_, err = pgx.ForEachRow(rows, []any{&account, &closing, &opening}, func() error {
			if account < 1 || account > int64(n) {
				return fmt.Errorf("account %d is not one of pgbench's", account)
			}
			seen++
			all.closing[account-1], all.opening[account-1] = closing, opening
			return nil
		})
		if err == nil && seen != n {
			err = fmt.Errorf("%d accounts instead of %d", seen, n)
		}
		return err
	})
	return all, err
}

// exportedLine is what an export has of an item.
type exportedLine struct {
	Key    string                `json:"key"`
	State  string                `json:"state"`
	Result *statements.Statement `json:"result"`
}

// prove reads the exported statements back and compares them with the bank, account by account and in total.
func (all *books) prove(file string) (*proof, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the statements back: %w", err)
	}
	defer func() { _ = f.Close() }()
	t := tally{books: all, seen: make([]bool, len(all.closing))}
	lines := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for n := 1; ; n++ {
		var line exportedLine
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return t.proof(file), nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the statements back: %s, line %d: %w", file, n, err)
		}
		t.add(line)
	}
}

// tally adds statements up.
type tally struct {
	*books
	seen                         []bool
	statements, openings, closed int64 // distinct accounts with a statement; with the right opening; the right closing
	count, total                 int64 // movements
	noStatement                  string
	wrongOpening, wrongClosing   string
}

func (t *tally) add(line exportedLine) {
	s := line.Result
	if line.State != "done" || s == nil {
		note(&t.noStatement, "account %s is %s", line.Key, line.State)
		return
	}
	i := int(s.Account) - 1
	if line.Key != fmt.Sprint(s.Account) || i < 0 || i >= len(t.seen) || t.seen[i] {
		note(&t.noStatement, "account %s has the statement of account %d, or two", line.Key, s.Account)
		return
	}
	t.seen[i] = true
	t.statements++
	t.count += s.Movements
	t.total += s.Sum
	if s.Closing == t.closing[i] {
		t.closed++
	} else {
		note(&t.wrongClosing, "account %d: %d, the bank has %d", s.Account, s.Closing, t.closing[i])
	}
	switch {
	case s.Opening+s.Sum != s.Closing:
		note(&t.wrongOpening, "account %d: %d and %d do not make %d", s.Account, s.Opening, s.Sum, s.Closing)
	case s.Opening != t.opening[i]:
		note(&t.wrongOpening, "account %d: %d, the bank had %d", s.Account, s.Opening, t.opening[i])
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

func (t *tally) proof(file string) *proof {
	accounts := int64(len(t.closing))
	return &proof{file: file, checks: []check{
		{"statements", t.statements, accounts, "accounts", t.noStatement},
		{"movements", t.count, t.movements, "rows in pgbench_history", ""},
		{"sum of movements", t.total, t.sum, "sum of their delta", ""},
		{"closing balances equal", t.closed, accounts, "in pgbench_accounts", t.wrongClosing},
		{"opening balances equal", t.openings, accounts, "as last year closed", t.wrongOpening},
	}}
}
