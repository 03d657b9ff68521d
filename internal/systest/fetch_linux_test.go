package systest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
)

// poisonVariable is the ordinal of an item that kills the node whose function gets it.
const poisonVariable = "TRANCHE_SYSTEST_POISON"

// runComposer is the process of a node whose function writes each execution into the ledger. At the execution that
// stopVariable names, if it does, it stops itself as runFlushed does.
func runComposer(ctx context.Context) error {
	ledger, err := os.OpenFile(os.Getenv(ledgerVariable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	poison, err := strconv.Atoi(os.Getenv(poisonVariable))
	if err != nil {
		poison = -1
	}
	stop, _ := strconv.Atoi(os.Getenv(stopVariable)) // empty: never
	var mu sync.Mutex
	return runNodeWith(ctx, map[string]fetch.Fetcher{"statement": fetch.Func(
		func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			mu.Lock()
			defer mu.Unlock()
			slots := make([]fetch.Slot, len(req.Items))
			for n, item := range req.Items {
				if _, err := fmt.Fprintf(ledger, "%s %d %d\n", req.Slice, item.Ordinal, req.Generation); err != nil {
					return nil, err
				}
				if item.Ordinal == poison {
					os.Exit(3)
				}
				if stop--; stop == 0 {
					if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
						return nil, err
					}
				}
				if err := partsAreOf(&item, inputsOf[req.Step]); err != nil {
					return nil, err
				}
				data, err := json.Marshal(statement{Of: item.Key})
				if err != nil {
					return nil, err
				}
				slots[n] = fetch.Slot{Ordinal: item.Ordinal, Data: data}
			}
			return slots, rest(ctx)
		})})
}

// partsAreOf checks that an item came with its own parts, and with all.
func partsAreOf(item *fetch.Item, parts int) error {
	if len(item.Parts) != parts {
		return fmt.Errorf("%s has %d parts; want %d", item.Key, len(item.Parts), parts)
	}
	for name := range item.Parts {
		var part statement
		if _, err := item.DecodePart(name, &part); err != nil || part.Of != item.Key {
			return fmt.Errorf("part %s of %s is of %q: %w", name, item.Key, part.Of, err)
		}
	}
	return nil
}

// loadKind makes a run whose work nodes do themselves.
func (w *world) loadKind(kind workqueue.Kind) workqueue.RunID {
	w.Helper()
	return w.loadStep(workqueue.StepSpec{Kind: kind, Endpoint: workqueue.PaceKey(kind, "statement"),
		StepSettings: workqueue.StepSettings{Chunk: chunk, MaxAttempts: 3}})
}

// A node that works itself is killed at each moment that matters. Its slices come back with its session, nobody's items
// are to blame, and only what was not recorded is done again.
func TestNodeThatFetchesIsKilledAnywhere(t *testing.T) {
	t.Parallel()
	for point, kinds := range map[string][]workqueue.Kind{
		fault.ClaimBefore:     {workqueue.KindLocal},
		fault.ClaimCommitted:  {workqueue.KindLocal},
		fault.FetchBefore:     {workqueue.KindLocal, workqueue.KindRequest},
		fault.FetchDone:       {workqueue.KindLocal},
		fault.RecordBefore:    {workqueue.KindLocal, workqueue.KindRequest},
		fault.RecordCommitted: {workqueue.KindLocal},
	} {
		for _, kind := range kinds {
			t.Run(point+" "+string(kind), func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				if kind == workqueue.KindRequest {
					w.start("service")
				}
				run := w.loadKind(kind)
				first := w.start("composer", faultsVariable+"="+point+"=kill@3")
				w.wantKilled(first)
				if !strings.Contains(first.said.String(), "fault fired: "+point) {
					t.Fatal("the fault did not fire")
				}
				if w.done(run) == items {
					t.Fatal("the run was complete before the fault")
				}
				w.start("composer", sessionVariable+"=1m")
				extra := w.wantSound(run)
				again := w.number(`SELECT count(*) FROM work_slice WHERE cause = 'session'`)
				t.Logf("%d slices came again, %d extra executions", again, extra)
				if point != fault.ClaimBefore && point != fault.RecordCommitted && again == 0 {
					t.Error("nothing of the dead node's came again")
				}
				other := w.number(`SELECT count(*) FROM work_slice WHERE cause NOT IN ('ready', 'session') OR failures > 0`)
				if other != 0 {
					t.Errorf("%d slices were made for another cause", other)
				}
				if extra > again*chunk {
					t.Errorf("%d extra executions for %d slices that came again", extra, again)
				}
			})
		}
	}
}

// A node sleeps in the middle of its own work until another has done it. What it writes then touches nothing.
func TestNodeThatFetchesSleeps(t *testing.T) {
	t.Parallel()
	w := setup(t)
	sleeper := w.start("composer", stopVariable+"=1050")
	run := w.loadKind(workqueue.KindLocal)
	w.until("the sleeper stands still", func() bool { return w.stopped(sleeper) })
	asleep := time.Now()
	if done := w.done(run); done == 0 || done == items {
		t.Fatalf("%d items of %d were done when it fell asleep", done, items)
	}
	w.start("composer")
	w.wantZombie(sleeper, run, asleep.Add(2*sessionTTL))
}

// An item kills every node that works on it. It is found, and it fails; the others of its chunk do not.
func TestItemThatKillsItsNodes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 40
	run := w.loadStep(workqueue.StepSpec{Kind: workqueue.KindLocal, Endpoint: "local:statement",
		StepSettings: workqueue.StepSettings{Chunk: 4, MaxAttempts: 1}})
	deaths := 0
	// Nodes that live must not lose their sessions: what comes again for that has been delivered as well.
	start := func() *process {
		w.Helper()
		return w.start("composer", poisonVariable+"=17", sessionVariable+"=1m")
	}
	for p := start(); ; {
		w.until("the run ends, or the node does", func() bool {
			select {
			case <-p.ended:
				return true
			default:
				return w.done(run) == w.items
			}
		})
		if w.done(run) == w.items {
			break
		}
		if deaths++; deaths > 12 {
			t.Fatal("the item goes on killing nodes")
		}
		w.expire(p)
		p = start()
	}
	failed := w.number(`SELECT count(*) FROM work_part WHERE run_id = $1 AND error_code = $2 AND ordinal = 17`, run,
		workqueue.CodeDeliveries)
	others := w.number(`SELECT count(*) FROM work_part WHERE run_id = $1 AND error_code IS NULL`, run)
	if failed != 1 || others != w.items-1 {
		t.Errorf("%d done, and the item failed %d times; want 39 and once", others, failed)
	}
	t.Logf("it killed %d nodes", deaths)
}
