package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/conformance"
)

// program starts a service in another language. The test's context ends before its clean-up, which wants to see the
// service end.
func (b *bench) program(name string, args ...string) (service *exec.Cmd, said *testenv.Log) {
	b.Helper()
	service, said = exec.CommandContext(context.WithoutCancel(b.Context()), name, args...), &testenv.Log{}
	service.Env = append(os.Environ(), "NATS_URL="+b.nats)
	service.Stdout, service.Stderr = said, said
	testenv.NoError(b, service.Start())
	return service, said
}

// balances is a file of so many accounts, of which those with some numbers within a thousand have another balance.
func balances(count int, others map[int]string) string {
	var rows strings.Builder
	rows.WriteString("id,balance\n")
	for i := range count {
		fmt.Fprintf(&rows, "ACC-%d,%s\n", i, cmp.Or(others[i%1000], strconv.Itoa(i*2)))
	}
	return rows.String()
}

// Services in other languages do whole runs. Of two instances in TypeScript one dies in the middle of a run of a flow:
// the other takes its chunks on. The one in Python is the smallest that docs/protocol.md begins with.
func TestServicesInOtherLanguages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	program := testenv.NodeService(t, filepath.Join("..", "..", "examples", "node"))
	first, _ := b.program("node", program)
	other, said := b.program("node", program)
	t.Cleanup(func() {
		_ = other.Process.Signal(syscall.SIGTERM) // it may have ended
		testenv.Same(t, other.Wait(), nil, "the service ended: %s", said.String())
	})
	// They make their consumer before a run does.
	eventually(t, "the service is listed", func() bool {
		return strings.Contains(b.tranche("endpoints").out, "node-interest")
	})
	start := func(endpoint, items string, args ...string) result {
		t.Helper()
		return b.pipe(items, append([]string{"run", "start", "--endpoint", endpoint, "--items", "-"}, args...)...)
	}
	b.want(start("node-interest", balances(3000, map[int]string{7: "-5"}), "--wait"), cli.ExitFailed,
		"2,997 of 3,000 items done, 3 failed")
	b.want(b.tranche("run", "errors", "last"), cli.ExitOK, "overdrawn", "ACC-1007", "the balance is -5.00")
	results := b.exported(3000)
	for i, r := range results {
		if want := float64(i*3) / 100; i%1000 != 7 && (r == nil || r.Amount != want) {
			t.Errorf("item %d: got %+v, want %.2f", i, r, want)
		}
	}
	b.want(b.tranche("endpoints", "set", "node-interest", "--concurrency", "9"), cli.ExitOK, "9 concurrent chunks")
	eventually(t, "the services obey the operator", func() bool {
		return strings.Count(b.tranche("endpoints", "show", "node-interest").out, "0/9") == 2
	})

	b.want(start("node-statement", balances(2000, nil), "--chunk", "20", "--rate", "500"), cli.ExitOK)
	eventually(t, "some are done", func() bool {
		return strings.Count(b.tranche("run", "export", "last").out, `"closing"`) > 0
	})
	testenv.NoError(t, first.Process.Kill())
	_ = first.Wait()
	b.want(b.tranche("run", "watch", "last"), cli.ExitOK, "2,000 of 2,000 items done")
	for i, r := range b.exported(2000) {
		closing, doubled := float64(i*203)/100, float64(i*6)/100
		if r == nil || math.Abs(r.Closing-closing) > 1e-9 || math.Abs(r.Doubled-doubled) > 1e-9 {
			t.Errorf("item %d: got %+v, want %.2f and %.2f", i, r, closing, doubled)
		}
	}

	python, err := exec.LookPath("python3")
	testenv.MustSame(t, err, nil, "run scripts/deps.sh python, which says what to install where it cannot")
	smallest, says := b.program(python, "-u", filepath.Join("..", "..", "examples", "python", "service.py"))
	t.Cleanup(func() {
		_ = smallest.Process.Kill() // it has no other end
		_ = smallest.Wait()
		testenv.Same(t, says.String(), "", "the service in Python says")
	})
	b.want(start("python-interest", balances(3000, map[int]string{7: "-5", 8: "nan"}), "--wait"), cli.ExitFailed,
		"2,994 of 3,000 items done, 6 failed")
	b.want(b.tranche("run", "errors", "last"), cli.ExitOK, "overdrawn", "the balance is -5.00", "bad_payload")
	b.want(b.tranche("quarantine", "list"), cli.ExitOK, "nothing")
}

// outcome is a result of these services.
type outcome struct{ Amount, Closing, Doubled float64 }

// exported are the results of the last run, of which there must be so many; nil: the item failed.
func (b *bench) exported(count int) []*outcome {
	b.Helper()
	all := make([]*outcome, count)
	seen := 0
	for decoder := json.NewDecoder(strings.NewReader(b.tranche("run", "export", "last").out)); decoder.More(); seen++ {
		var item struct {
			Ordinal int
			Result  *outcome
		}
		if err := decoder.Decode(&item); err != nil || item.Ordinal >= count {
			b.Fatal(item.Ordinal, err)
		}
		all[item.Ordinal] = item.Result
	}
	testenv.Same(b, seen, count, "items were exported")
	return all
}

func TestConformanceCommand(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	list := runProgram(t, nil, "", "conformance", "--list")
	b.want(list, cli.ExitOK, conformance.Names()...)
	b.want(runProgram(t, nil, "", "conformance"), cli.ExitUsage, "--endpoint is missing")
	b.want(runProgram(t, nil, "", "conformance", "--endpoint", "x"), cli.ExitOther, "-- COMMAND")
	b.want(runProgram(t, nil, "", "conformance", "--endpoint", "x", "--", "sh", "-c", "echo no such luck; exit 7"),
		cli.ExitOther, "before it listened on x", "no such luck")
	bad := filepath.Join(t.TempDir(), "items")
	testenv.NoError(t, os.WriteFile(bad, []byte("{}\n\n{\n"), 0o600))
	b.want(runProgram(t, nil, "", "conformance", "--endpoint", "x", "--items", bad, "--", "true"), cli.ExitOther,
		"line 3 of")
}

// A service on a server with accounts is checked as the user of the nodes, who the environment says.
func TestConformanceAsTheNode(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	dir := t.TempDir()
	b.want(runProgram(t, nil, "", "nats", "config", "--service", "echo=echo", "--out", dir), cli.ExitOK, "node.nk")
	conf := testenv.Must(os.ReadFile(filepath.Join(dir, "server.conf")))(t)
	server := testenv.NATSByConfig(t, string(conf))
	as := func(name string) *nats.Conn {
		return testenv.Dial(t, server.URL(), testenv.Must(nats.NkeyOptionFromSeed(filepath.Join(dir, name+".nk")))(t))
	}
	js, err := jetstream.New(as("node"), jetstream.WithDefaultTimeout(patienceInTests))
	if err == nil {
		_, err = stream.Ensure(t.Context(), js, stream.Config{Memory: true})
	}
	if err == nil {
		err = stream.EnsureConsumer(t.Context(), js, "echo", stream.ConsumerSettings{})
	}
	testenv.NoError(t, err)
	service, err := endpoints.New(as("echo"), endpoints.Config{Name: "echo"})
	if err == nil {
		err = endpoints.HandleEach(service, "echo", func(_ context.Context, in any) (any, error) { return in, nil })
	}
	testenv.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := testenv.Begin(t, func() (struct{}, error) { return struct{}{}, service.Run(ctx) })
	defer func() { cancel(); ended() }()
	eventually(t, "it listens", func() bool { return service.Stats()[0].State == wire.StateListening })
	arguments := []string{"conformance", "--endpoint", "echo", "--only", "list", "--nats", server.URL()}
	b.want(runProgram(t, nil, "", arguments...), cli.ExitOther, "Authorization")
	env := []string{"NATS_NKEY=" + filepath.Join(dir, "node.nk")}
	b.want(runProgram(t, env, "", arguments...), cli.ExitOK, "ok       must   list", "1 passed, 0 failed")
}

// TestConformanceTells runs a few checks that pass, fail and are left out.
func TestConformanceTells(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	program := filepath.Join("..", "..", "examples", "python", "service.py")
	record := filepath.Join(t.TempDir(), "record")
	arguments := []string{"conformance", "--endpoint", "python-interest", "--only", "list", "--only", "binary",
		"--record", record, "--"}
	r := runProgram(t, nil, "", append(arguments, "python3", "-u", program)...)
	b.want(r, cli.ExitOK, "ok       must   list", "left out should binary", "1 passed, 0 failed, 1 left out",
		"Each item sent was {}", "--items FILE")
	checkRecord(t, record)

	source := string(testenv.Must(os.ReadFile(program))(t))
	program = filepath.Join(t.TempDir(), "service.py")
	source = strings.Replace(source, `"Tranche-Final": slots`, `"Tranche-Final": slots + 1`, 1)
	testenv.NoError(t, os.WriteFile(program, []byte(source), 0o600))
	arguments = []string{"conformance", "--endpoint", "python-interest", "--only", "final", "--", "python3", "-u", program}
	r = runProgram(t, nil, "", arguments...)
	b.want(r, cli.ExitOther, "FAIL     must   final", "users:    items left out", `got:      Tranche-Final "51"`,
		"docs/protocol.md, Several messages",
		"1 failed")
	var report conformance.Report
	r = runProgram(t, nil, "", append([]string{"--json"}, arguments...)...)
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.code != cli.ExitOther ||
		report.Count(conformance.Failed) != 1 {
		t.Errorf("got exit code %d (%v) and %s", r.code, err, r.out)
	}
}

// checkRecord wants a pull, a request, a reply and an acknowledgement in it, each with the check that it is of.
func checkRecord(t *testing.T, file string) {
	t.Helper()
	text := testenv.Must(os.ReadFile(file))(t)
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		var said struct{ Check, Subject string }
		testenv.Same(t, json.Unmarshal([]byte(line), &said), nil, "%s", line)
		for _, start := range []string{"$JS.API.CONSUMER.MSG.NEXT.", "tranche.work.", "tranche.reply.", "$JS.ACK."} {
			seen[start] = seen[start] || said.Check == "list" && strings.HasPrefix(said.Subject, start)
		}
	}
	if len(seen) != 4 || !seen["tranche.work."] || !seen["tranche.reply."] || !seen["$JS.ACK."] {
		t.Errorf("of the check list the record has %v:\n%s", seen, text)
	}
}
