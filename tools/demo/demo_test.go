package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	// patience bounds each whole demo.
	patience = 6 * time.Minute
	// A demo of this size is quick, and has everything.
	demoAccounts = 2_000
	demoPDFs     = 100
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestDemo runs four whole demos concurrently, on the program as it is built.
func TestDemo(t *testing.T) {
	t.Parallel()
	program := testenv.Program(t, filepath.Join("..", ".."))
	t.Run("proves", func(t *testing.T) { t.Parallel(); testProves(t, program) })
	t.Run("notices a false statement", func(t *testing.T) { t.Parallel(); testNotices(t, program) })
	t.Run("stops when told", func(t *testing.T) { t.Parallel(); testStops(t, program) })
	t.Run("lingers for a person", func(t *testing.T) { t.Parallel(); testLingers(t, program) })
}

func demoCommand(t *testing.T, program, dir string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, "demo", "--dir", dir, "--accounts", strconv.Itoa(demoAccounts), "--pdfs",
		strconv.Itoa(demoPDFs))
	cmd.Env = demokit.Environment() // a bank or a server of the tester's must not matter
	demokit.Gently(cmd)
	return cmd
}

func testProves(t *testing.T, program string) {
	t.Helper()
	dir := testenv.Dir(t)
	out, err := demoCommand(t, program, dir).CombinedOutput()
	testenv.MustSame(t, err, nil, "%s", out)
	text := string(out)
	for _, want := range []string{
		"last-year.csv: 2 items do not fit the schema", "20  unknown_form", "has 20 items corrected", "no_balance",
		"branch # does not exist", "broken_movement",
		"2,000 of 2,000 items done, 0 failed", "statements sent               2,000 =           2,000",
		"ok  movements requested              50 =              50",
		"ok  statements composed              50 =              50",
		"ok  of them PDFs                    119 =             119", "Everything agrees", dir,
	} {
		testenv.Has(t, text, want, "the demo")
	}
	if strings.Contains(text, "\x1b") || strings.Contains(text, "\r") {
		t.Error("the demo writes for a terminal where there is none")
	}
	if t.Failed() {
		t.Log(text)
	}
	statements := testenv.Must(os.ReadFile(filepath.Join(dir, statementsFile)))(t)
	testenv.Same(t, bytes.Count(statements, []byte("\n")), demoAccounts, "statements were left")
	expectPDFs(t, filepath.Join(dir, pdfsDir))
	expectNothingLeft(t, text, dir)
}

// expectPDFs wants the fifty statements that were recomputed.
func expectPDFs(t *testing.T, dir string) {
	t.Helper()
	files := testenv.Must(filepath.Glob(filepath.Join(dir, "*.pdf")))(t)
	testenv.Same(t, len(files), fifty, "PDFs were left")
	for _, file := range files {
		pdf := testenv.Must(os.ReadFile(file))(t)
		printed := testenv.Must(yearend.Read(pdf))(t)
		testenv.Same(t, strconv.Itoa(int(printed.Account))+".pdf", filepath.Base(file), "%s is the statement of account %d",
			file, printed.Account)
	}
}

func testNotices(t *testing.T, program string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := testenv.Dir(t)
	var out bytes.Buffer
	err := Run(ctx, Config{Program: program, Dir: dir, Accounts: demoAccounts, Out: &out, Err: io.Discard,
		exported: func(file string) error {
			text, err := os.ReadFile(file)
			falsified := bytes.Replace(text, []byte(`"opening":`), []byte(`"opening":1`), 1)
			return errors.Join(err, os.WriteFile(file, falsified, 0o600))
		},
	})
	var unequal *demokit.UnequalError
	if !errors.As(err, &unequal) || len(unequal.Differences) != 1 ||
		!strings.HasPrefix(unequal.Differences[0], "openings equal 1,999, but 2,000") {
		t.Errorf("got %v, want one opening balance to be unequal\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "NO  openings equal") || strings.Contains(out.String(), "agrees") {
		t.Errorf("the person is told something else:\n%s", out.String())
	}
	expectNothingLeft(t, out.String(), dir)
}

func testStops(t *testing.T, program string) {
	t.Helper()
	dir := testenv.Dir(t)
	cmd := demoCommand(t, program, dir)
	pipe := testenv.Must(cmd.StdoutPipe())(t)
	testenv.NoError(t, cmd.Start())
	var said strings.Builder
	interrupted := false
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if !interrupted && strings.Contains(lines.Text(), " started: ") { // the run is in progress
			testenv.NoError(t, cmd.Process.Signal(os.Interrupt))
			interrupted = true
		}
	}
	err := cmd.Wait()
	if !interrupted || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("interrupted: %v; ended with %v, want exit code 1\n%s", interrupted, err, said.String())
	}
	expectNothingLeft(t, said.String(), dir)
}

// expectNothingLeft looks for the processes that the demo named, and for its servers' data.
func expectNothingLeft(t *testing.T, text, dir string) {
	t.Helper()
	pids := regexp.MustCompile(`(?m)^pid (\d+),`).FindAllStringSubmatch(text, -1)
	testenv.Same(t, len(pids), 6, "processes that the demo names:\n%s", text)
	for _, match := range pids {
		pid := testenv.Must(strconv.Atoi(match[1]))(t)
		testenv.Is(t, syscall.Kill(pid, 0), syscall.ESRCH, "process %d", pid)
	}
	_, err := os.Stat(filepath.Join(dir, "servers"))
	testenv.Is(t, err, os.ErrNotExist, "the servers' data")
}

// A person at a terminal is left everything until a line is entered, and told how to break and fix an account.
func testLingers(t *testing.T, program string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := testenv.Dir(t)
	keyboard, typed := io.Pipe()
	told, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Run(ctx, Config{Program: program, Dir: dir, Accounts: minAccounts, Out: out, Err: io.Discard, Enter: keyboard})
		ended <- errors.Join(err, out.Close())
	}()
	var text strings.Builder
	for lines := bufio.NewScanner(told); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		if lines.Text() == "Enter ends it all." {
			at := regexp.MustCompile(`pixel:\n  (http://127\.0\.0\.1:\d+)\n`).FindStringSubmatch(text.String())
			if at == nil {
				t.Fatalf("no dashboard is named:\n%s", text.String())
			}
			if code, page := testenv.Get(t, at[1]); code != http.StatusOK || !strings.HasPrefix(page, "<!doctype html>") {
				t.Errorf("%s answers %d, %s", at[1], code, page)
			}
			testenv.Must(typed.Write([]byte("\n")))(t)
		}
	}
	testenv.NoError(t, <-ended)
	testenv.Has(t, text.String(), "UPDATE customer SET branch = 991 WHERE account = ",
		"it is not said how to break an account")
	expectNothingLeft(t, text.String(), dir)
}
