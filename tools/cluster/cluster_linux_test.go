package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/demokit"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const repository = "../.."

// make cluster, as someone types it: everything breaks while the run is in progress, nothing is lost, nothing stays
// behind. And the same interrupted by Ctrl-C.
func TestMakeCluster(t *testing.T) {
	dir := testenv.Dir(t)
	cmd := exec.CommandContext(t.Context(), "make", "-C", repository, "cluster",
		"CLUSTER_FLAGS=--items 20000 --dir "+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = demokit.StopTimeout
	said, err := cmd.CombinedOutput()
	text := string(said)
	testenv.MustSame(t, err, nil, "make cluster\n%s", text)
	for _, want := range []string{
		"primary killed, standby promoted", "three nodes of the next version", "four instances of the next version",
		"completed: 20,000 of 20,000 items done, 0 failed", "ok  results of interest          20,000 =          20,000",
		"ok  results of letter            20,000 =          20,000", "all invariants hold:",
	} {
		testenv.Has(t, text, want, "what it says")
	}
	if table := text[strings.LastIndex(text, "What it cost"):]; strings.Count(table, " s\n") != 8 ||
		!strings.Contains(table, "items lost                                                               0\n") {
		t.Errorf("the table is another one:\n%s", table)
	}
	if t.Failed() || testing.Verbose() {
		t.Log(text)
	}
	wantNothingLeft(t, dir)
	t.Run("interrupted", testBrokenOff)
}

func testBrokenOff(t *testing.T) {
	dir := testenv.Dir(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join("bin", "cluster"), "--items", "20000", "--dir", dir)
	cmd.Dir = repository
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	testenv.NoError(t, err)
	var said strings.Builder
	interrupted := false
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if !interrupted && strings.Contains(lines.Text(), " started: ") { // the run is in progress
			interrupted = true
			testenv.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	err = cmd.Wait()
	if !interrupted || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("interrupted: %v; ended with %v, want exit code 1\n%s", interrupted, err, said.String())
	}
	wantNothingLeft(t, dir)
}

// wantNothingLeft looks for processes that have to do with the directory, and for the servers' data.
func wantNothingLeft(t *testing.T, dir string) {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, "servers"))
	testenv.Is(t, err, os.ErrNotExist, "the servers' data is still there")
	processes := testenv.Must(filepath.Glob("/proc/[0-9]*"))(t)
	for _, process := range processes {
		for _, file := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(filepath.Join(process, file)) // it may have ended
			if err == nil && strings.Contains(string(text), dir) {
				t.Errorf("a process is left: %s", strings.ReplaceAll(string(text), "\x00", " "))
			}
		}
	}
}

// What a step answered is right only if its service noted just that, for the item, once.
func TestWrongResultsAreFound(t *testing.T) {
	t.Parallel()
	noted := func(n int) string {
		return fmt.Sprintf(`{"key":"C-%d","state":"done","result":{"interest":%d,"receipt":"r%d"}}`, n,
			makeAccount(n).interest(), n)
	}
	for name, test := range map[string]struct{ second, wrong string }{
		"right":          {noted(1), ""},
		"twice":          {noted(0), "C-0 is not an item, or appears twice"},
		"unknown":        {noted(2), "C-2 is not an item, or appears twice"},
		"failed":         {`{"key":"C-1","state":"failed"}`, "C-1 is failed"},
		"not noted":      {strings.Replace(noted(1), "r1", "r3", 1), "C-1: no service recorded {Interest:1 Receipt:r3}"},
		"of another":     {strings.Replace(noted(1), "r1", "r0", 1), "C-1: no service recorded {Interest:1 Receipt:r0}"},
		"another amount": {strings.Replace(noted(1), ":1,", ":2,", 1), "C-1: no service recorded {Interest:2 Receipt:r1}"},
		"the service errs": {
			strings.NewReplacer(":1,", ":2,", "r1", "r2").Replace(noted(1)), "C-1: got 2, want 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "export")
			testenv.NoError(t, os.WriteFile(file, []byte(noted(0)+"\n"+test.second+"\n"), 0o600))
			p := answered("r0", "C-0", makeAccount(0).interest())
			p.answers["r1"] = answer("C-1", 1)
			p.answers["r2"] = answer("C-1", 2)
			right, wrong, err := p.count(file, 2)
			want := int64(1)
			if test.wrong == "" {
				want = 2
			}
			if err != nil || right != want || wrong != test.wrong {
				t.Errorf("%d are right, %q, %v; want %d and %q", right, wrong, err, want, test.wrong)
			}
		})
	}
}

func answer(key string, interest int64) recorded { return recorded{key: key, interest: interest} }

func answered(receipt, key string, interest int64) *proof {
	return &proof{answers: map[string]recorded{receipt: answer(key, interest)}}
}
