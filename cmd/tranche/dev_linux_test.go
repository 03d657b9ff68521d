package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// A changed file restarts the service, r repeats the last run with it, and Ctrl-C leaves no process behind.
func TestDev(t *testing.T) {
	t.Parallel()
	b := &bench{T: t, nats: testenv.NATS(t).URL(), database: testenv.Database(t)}
	dir := t.TempDir()
	program, items := filepath.Join(dir, "service.py"), filepath.Join(t.TempDir(), "items.csv")
	groups := filepath.Join(t.TempDir(), "groups")
	source := string(testenv.Must(os.ReadFile(filepath.Join("..", "..", "examples", "python", "service.py")))(t))
	testenv.NoError(t, os.WriteFile(program, []byte(source), 0o600))
	testenv.NoError(t, os.WriteFile(items, []byte("id,balance\nC-1,100\n"), 0o600))
	s := &server{where: map[string]string{}, log: &testenv.Log{}}
	s.Cmd = command(t, nil, "--json", "dev", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(),
		"--database", b.database, "--nats", b.nats, "--watch", dir, "--",
		"sh", "-c", `echo $$ >> "$1"; python3 -u "$0" & wait`, program, groups)
	typed := testenv.Must(s.StdinPipe())(t)
	s.Stderr, s.out = s.log, testenv.Must(s.StdoutPipe())(t)
	testenv.NoError(t, s.Start())
	t.Cleanup(func() { _ = s.Process.Kill() }) // it ended, unless the test failed
	s.ready(t)
	b.url = s.where["api"]
	b.want(b.tranche("run", "start", "--endpoint", "python-interest", "--items", items, "--wait"), 0)
	b.want(b.tranche("run", "item", "last", "C-1"), 0, `"amount":1.5`)

	source = strings.Replace(source, "0.015", "0.03", 1)
	testenv.NoError(t, os.WriteFile(program, []byte(source), 0o600))
	started := func() []string { text, _ := os.ReadFile(groups); return strings.Fields(string(text)) }
	eventually(t, "the service is restarted", func() bool { return len(started()) == 2 })
	testenv.Must(io.WriteString(typed, "r\n"))(t)
	eventually(t, "the run is repeated", func() bool {
		return strings.Contains(b.tranche("run", "item", "last", "C-1").out, `"amount":3.0`)
	})
	testenv.NoError(t, s.Process.Signal(os.Interrupt))
	testenv.Same(t, s.Wait(), nil, "it ended: %s", s.log.String())
	for _, group := range started() {
		id := testenv.Must(strconv.Atoi(group))(t)
		eventually(t, "the service ended", func() bool { return errors.Is(syscall.Kill(-id, 0), syscall.ESRCH) })
	}
}

// A second Ctrl-C kills a service that does not end; the first one only asks it to, also if it is stopped for a change.
func TestDevSecondSignal(t *testing.T) {
	for name, signals := range map[string]int{"stopped by a signal": 1, "for a change": 2} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out, in := io.Pipe()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", `trap "echo" TERM; echo; while :; do sleep 0.1; done`)
			cmd.Stdout = in
			said := func() { _, _ = out.Read(make([]byte, 1)) }
			service := testenv.Must(embedded.StartGroup(cmd))(t)
			said()
			seen := make(chan os.Signal, 1)
			signal.Notify(seen, os.Interrupt)
			defer signal.Stop(seen)
			if signals == 1 {
				cancel()
			}
			go func() {
				said()
				for range signals {
					_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
					<-seen
				}
			}()
			testenv.Says(t, stop(ctx, service), "killed at the second signal", "the service")
			testenv.Same(t, len(seen), 0, "signals left")
		})
	}
}
