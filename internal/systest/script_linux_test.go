package systest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// runEcho answers items with their id, as testdata/echo.js does.
func runEcho(ctx context.Context) error {
	svc, ledger, closeAll, err := openService("echo")
	if err != nil {
		return err
	}
	defer closeAll()
	err = endpoints.HandleList(svc, "echo", func(_ context.Context, c *endpoints.Chunk[account, statement]) error {
		for _, item := range c.Items() {
			item.Reply(statement{Of: item.In.ID})
		}
		return nil
	}, endpoints.Concurrency(1))
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, ready)
	return errors.Join(svc.Run(ctx), ledger.Close())
}

// TestWhatAScriptCosts runs the same items through a service in Go and one in JavaScript, in turns, and compares what
// their processes take of the processor, each over some runs after a first one. The aim is twice as much, which
// docs/benchmarks.md has of a machine at rest; beside other tests, V8's own threads take more.
func TestWhatAScriptCosts(t *testing.T) {
	const rounds, runs, of, most = 3, 2, 150_000, 3
	w := setup(t)
	node := testenv.Must(uuid.Parse(w.start("node", sessionVariable+"=1m").session()))(t)
	w.loader = workqueue.SessionID(node)
	project := testenv.NodeProject(t, root)
	script, err := os.ReadFile(filepath.Join("testdata", "echo.js"))
	if err == nil {
		err = os.WriteFile(filepath.Join(project, "echo.js"), script, 0o600)
	}
	testenv.NoError(t, err)
	cost := func(service *process) float64 {
		w.items = of
		w.complete(w.loadStep(echoed()))
		before := w.processor(service)
		for range runs {
			w.complete(w.loadStep(echoed()))
		}
		took := w.processor(service) - before
		w.signal(service, syscall.SIGTERM)
		w.await(service)
		return float64(took.Nanoseconds()) / 1000 / (runs * of)
	}
	var ratios []float64
	for range rounds {
		inGo := cost(w.start("echo"))
		inJS := cost(w.run("node.js", exec.Command("node", filepath.Join(project, "echo.js")), "NATS_URL="+w.ns.URL()))
		t.Logf("µs an item: %.2f in Go, %.2f in JavaScript: %.2f", inGo, inJS, inJS/inGo)
		ratios = append(ratios, inJS/inGo)
	}
	if slices.Sort(ratios); ratios[rounds/2] > most {
		t.Errorf("a service in JavaScript takes %.2f times the processor of one in Go (median of %.2f); want %d at most",
			ratios[rounds/2], ratios, most)
	}
}

func echoed() workqueue.StepSpec {
	return workqueue.StepSpec{Endpoint: "echo", StepSettings: workqueue.StepSettings{Chunk: 500, MaxAttempts: 3}}
}

func (w *world) processor(p *process) time.Duration {
	w.Helper()
	stat := w.stat(p)
	var user, system int64
	testenv.Must(fmt.Sscan(stat[11]+" "+stat[12], &user, &system))(w)
	return time.Duration(user+system) * (10 * time.Millisecond) // USER_HZ is 100 on all Linux systems
}
