package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	if err := service.Start(); err != nil {
		b.Fatal(err)
	}
	return service, said
}

// TestARunOverANodeService has a service in another language, which was there first, answer a whole run.
func TestARunOverANodeService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	program := testenv.NodeService(t, filepath.Join("..", "..", "examples", "node"))
	service, said := b.program("node", program)
	t.Cleanup(func() {
		_ = service.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := service.Wait(); err != nil {
			t.Errorf("the service ended with %v: %s", err, said.String())
		}
	})
	// It makes its consumer before the run does.
	eventually(t, "the service is listed", func() bool {
		return strings.Contains(b.tranche("endpoints").out, "node-interest")
	})

	const count = 10_000
	var rows strings.Builder
	rows.WriteString("id,balance\n")
	for i := range count {
		balance := i * 2
		if i%1000 == 7 {
			balance = -5
		}
		fmt.Fprintf(&rows, "ACC-%d,%d\n", i, balance)
	}
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "node-interest", "--items", "-", "--wait"), cli.ExitFailed,
		"9,990 of 10,000 items done, 10 failed")
	b.want(b.tranche("run", "errors", "last"), cli.ExitOK, "overdrawn", "ACC-1007", "the balance is -5.00")
	checkInterest(t, b.tranche("run", "export", "last").out, count)

	b.want(b.tranche("endpoints", "set", "node-interest", "--concurrency", "9"), cli.ExitOK, "9 chunks at once")
	eventually(t, "the service obeys the operator", func() bool {
		return strings.Contains(b.tranche("endpoints", "show", "node-interest").out, "0/9")
	})
}

// TestARunOverAPythonService has the smallest service that docs/protocol.md begins with answer a whole run.
func TestARunOverAPythonService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("%v: run scripts/deps.sh python, which says what to install where it cannot", err)
	}
	service, said := b.program(python, "-u", filepath.Join("..", "..", "examples", "python", "service.py"))
	t.Cleanup(func() {
		_ = service.Process.Kill() // it has no other end
		_ = service.Wait()
		if said.String() != "" {
			t.Errorf("the service says %s", said.String())
		}
	})
	const count = 3_000
	var rows strings.Builder
	rows.WriteString("id,balance\n")
	for i := range count {
		balance := fmt.Sprint(i * 2)
		switch i % 1000 {
		case 7:
			balance = "-5"
		case 8:
			balance = "nan"
		}
		fmt.Fprintf(&rows, "ACC-%d,%s\n", i, balance)
	}
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "python-interest", "--items", "-", "--wait"),
		cli.ExitFailed,
		"2,994 of 3,000 items done, 6 failed")
	b.want(b.tranche("run", "errors", "last"), cli.ExitOK, "overdrawn", "the balance is -5.00", "bad_payload")
	b.want(b.tranche("quarantine", "list"), cli.ExitOK, "nothing")
}

func checkInterest(t *testing.T, export string, count int) {
	t.Helper()
	seen := 0
	for decoder := json.NewDecoder(strings.NewReader(export)); decoder.More(); seen++ {
		var item struct {
			Ordinal int
			Result  *struct{ Amount float64 }
		}
		if err := decoder.Decode(&item); err != nil {
			t.Fatal(err)
		}
		want := float64(item.Ordinal*3) / 100
		if item.Ordinal%1000 != 7 && (item.Result == nil || item.Result.Amount != want) {
			t.Errorf("item %d: got %+v, want %.2f", item.Ordinal, item.Result, want)
		}
	}
	if seen != count {
		t.Errorf("%d items were exported; there are %d", seen, count)
	}
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
	if err := os.WriteFile(bad, []byte("{}\n\n{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.want(runProgram(t, nil, "", "conformance", "--endpoint", "x", "--items", bad, "--", "true"), cli.ExitOther,
		"line 3 of")
}

// A service on a server with accounts is checked as the user of the nodes, who the environment says.
func TestConformanceAsTheNode(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	dir := t.TempDir()
	b.want(runProgram(t, nil, "", "nats", "config", "--service", "echo=echo", "--out", dir), cli.ExitOK, "node.nk")
	conf, err := os.ReadFile(filepath.Join(dir, "server.conf"))
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.NATSByConfig(t, string(conf))
	as := func(name string) *nats.Conn {
		option, err := nats.NkeyOptionFromSeed(filepath.Join(dir, name+".nk"))
		if err != nil {
			t.Fatal(err)
		}
		return testenv.Dial(t, server.URL(), option)
	}
	js, err := jetstream.New(as("node"), jetstream.WithDefaultTimeout(patienceInTests))
	if err == nil {
		_, err = stream.Ensure(t.Context(), js, stream.Config{Memory: true})
	}
	if err == nil {
		err = stream.EnsureConsumer(t.Context(), js, "echo", stream.ConsumerSettings{})
	}
	if err != nil {
		t.Fatal(err)
	}
	service, err := endpoints.New(as("echo"), endpoints.Config{Name: "echo"})
	if err == nil {
		err = endpoints.HandleEach(service, "echo", func(_ context.Context, in any) (any, error) { return in, nil })
	}
	if err != nil {
		t.Fatal(err)
	}
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
	program := testenv.NodeService(t, filepath.Join("..", "..", "examples", "node"))
	record := filepath.Join(t.TempDir(), "record")
	arguments := []string{"conformance", "--endpoint", "node-interest", "--only", "list", "--only", "binary",
		"--record", record, "--"}
	service := []string{"node", program}
	r := runProgram(t, nil, "", append(arguments, service...)...)
	b.want(r, cli.ExitOK, "ok       must   list", "left out should binary", "1 passed, 0 failed, 1 left out")
	checkRecord(t, record)

	message := filepath.Join(filepath.Dir(program), "node_modules", "tranche-endpoints", "lib", "reply.js")
	source, err := os.ReadFile(message)
	if err != nil {
		t.Fatal(err)
	}
	source = []byte(strings.Replace(string(source), "String(this.total)", "String(this.total + 1)", 1))
	if err := os.WriteFile(message, source, 0o600); err != nil {
		t.Fatal(err)
	}
	arguments = []string{"conformance", "--endpoint", "node-interest", "--only", "final", "--"}
	r = runProgram(t, nil, "", append(arguments, service...)...)
	b.want(r, cli.ExitOther, "FAIL     must   final", "users:    items that were left out", `got:      Tranche-Final "51"`,
		"docs/protocol.md, Several messages",
		"1 failed")
	var report conformance.Report
	r = runProgram(t, nil, "", append(append([]string{"--json"}, arguments...), service...)...)
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.code != cli.ExitOther ||
		report.Count(conformance.Failed) != 1 {
		t.Errorf("got exit code %d (%v) and %s", r.code, err, r.out)
	}
}

// checkRecord wants a pull, a request, a reply and an acknowledgement in it, each with the check that it is of.
func checkRecord(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		var said struct{ Check, Subject string }
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		for _, start := range []string{"$JS.API.CONSUMER.MSG.NEXT.", "tranche.work.", "tranche.reply.", "$JS.ACK."} {
			seen[start] = seen[start] || said.Check == "list" && strings.HasPrefix(said.Subject, start)
		}
	}
	if len(seen) != 4 || !seen["tranche.work."] || !seen["tranche.reply."] || !seen["$JS.ACK."] {
		t.Errorf("of the check list the record has %v:\n%s", seen, text)
	}
}
