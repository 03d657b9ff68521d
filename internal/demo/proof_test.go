package demo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func keepLine(line *exportedLine) *exportedLine { return line }

// TestProof shows that the proof holds for what the bank has, and fails for any difference, which it names.
func TestProof(t *testing.T) {
	t.Parallel()
	b := smallBank(t)
	books, err := b.books(t.Context(), smallAccounts)
	must(t, err)
	// moved is an account with movements.
	moved := int32(b.number(t, `SELECT min(aid) FROM pgbench_history`))

	for _, test := range []struct {
		name   string
		tamper func(*exportedLine) *exportedLine
		want   []string // in the error; none: it holds
	}{
		{"nothing", keepLine, nil},
		{"a closing balance", func(l *exportedLine) *exportedLine {
			l.Result.Closing++
			l.Result.Opening++
			return l
		}, []string{"closing balances equal 499, but 500", "opening balances equal 499"}},
		{"an opening balance", func(l *exportedLine) *exportedLine {
			l.Result.Opening--
			return l
		}, []string{"opening balances equal 499", "do not make"}},
		{"a movement's amount", func(l *exportedLine) *exportedLine {
			l.Result.Sum -= 7
			l.Result.Opening += 7
			return l
		}, []string{"sum of movements", "opening balances equal 499"}},
		{"a movement", func(l *exportedLine) *exportedLine {
			l.Result.Movements++
			return l
		}, []string{"movements 401, but 400 rows"}},
		{"a statement missing", func(*exportedLine) *exportedLine { return nil },
			[]string{"statements 499, but 500 accounts"}},
		{"a statement of somebody else", func(l *exportedLine) *exportedLine {
			l.Result.Account++
			return l
		}, []string{"statements 499", "has the statement of account"}},
		{"a failed item", func(l *exportedLine) *exportedLine {
			l.State, l.Result = "failed", nil
			return l
		}, []string{"statements 499", "is failed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := b.export(t, func(line *exportedLine) *exportedLine {
				if line.Result.Account != moved {
					return line
				}
				return test.tamper(line)
			})
			proof, err := books.prove(file)
			must(t, err)
			expectVerdict(t, proof.verdict(), test.want)
		})
	}
}

func expectVerdict(t *testing.T, err error, want []string) {
	t.Helper()
	var unequal *UnequalError
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
	all := &books{opening: make([]int64, 1), closing: make([]int64, 1)}
	file := filepath.Join(t.TempDir(), statementsFile)
	if _, err := all.prove(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a file that is not there", err)
	}
	must(t, os.WriteFile(file, []byte(`{"key":"1","state":"done","resu`), 0o600))
	if _, err := all.prove(file); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("got %v for half a line, want an error that names line 1", err)
	}
}
