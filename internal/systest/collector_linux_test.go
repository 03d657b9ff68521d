package systest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

// runFlushed is the process of a service that collectors flush to. It writes each operation into the ledger, with the
// flush that brought it and what it carries, and takes its time over each. At the execution that stopVariable names it
// stops itself: in the middle of what it works on, however fast or slow the machine is.
func runFlushed(ctx context.Context) error {
	svc, ledger, closeAll, err := openService("flushed")
	if err != nil {
		return err
	}
	defer closeAll()
	stop, err := strconv.Atoi(os.Getenv(stopVariable))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	type flushed = endpoints.Chunk[json.RawMessage, statement]
	err = endpoints.HandleList(svc, "flushed", func(ctx context.Context, c *flushed) error {
		for _, item := range c.Items() {
			mu.Lock()
			_, err := fmt.Fprintf(ledger, "%s %s %s\n", c.Meta().Slice, item.Key, item.In)
			if stop--; stop == 0 {
				err = errors.Join(err, syscall.Kill(os.Getpid(), syscall.SIGSTOP))
			}
			mu.Unlock()
			if err := errors.Join(err, rest(ctx)); err != nil {
				return err
			}
			item.Reply(statement{Of: item.Key})
		}
		return nil
	}, endpoints.Concurrency(16))
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, ready)
	return errors.Join(svc.Run(ctx), ledger.Close())
}

const (
	flushedKeys  = 24
	opsOfFlushed = 30 // each key's
)

// gatherOps makes a collector, and adds the operations of its keys in turns.
func (w *world) gatherOps() {
	w.Helper()
	spec := collector.CollectorSpec{Name: "flushed", Endpoint: "flushed", MinSize: 3, MaxSize: 6, InFlight: 16,
		MaxAge: collector.Span(50 * time.Millisecond), Dedupe: collector.DefaultDedupe}
	if _, err := collector.New(w.store).ApplyCollector(w.Context(),
		collector.Text{Name: spec.Name, Spec: spec.WithDefaults(),
			Source: "endpoint: flushed"}, "test"); err != nil {
		w.Fatal(err)
	}
	var ops []collector.Op
	for n := range opsOfFlushed {
		for key := range flushedKeys {
			ops = append(ops, collector.Op{ID: fmt.Sprint(key, "/", n), Key: fmt.Sprint("k", key),
				Payload: json.RawMessage(`{"id":"C"}`)})
		}
	}
	if _, _, err := collector.New(w.store).AddOps(w.Context(), spec.Name, 0, [][]collector.Op{ops}); err != nil {
		w.Fatal(err)
	}
}

// ledgerOfOps returns how many operations were carried out again. None may be missing, and none may come before
// another of its key that was added before it: whatever comes for the first time is the next one of its key, and in a
// flush each follows the one before.
func (w *world) ledgerOfOps() (again int) {
	w.Helper()
	text, err := os.ReadFile(w.ledger)
	if err != nil {
		w.Fatal(err)
	}
	next, last := [flushedKeys]int{}, map[string]int{}
	for line := range strings.Lines(string(text)) {
		var flush string
		var key, n int
		if _, err := fmt.Sscanf(line, "%s %d/%d", &flush, &key, &n); err != nil {
			w.Fatalf("ledger line %q: %v", line, err)
		}
		if before, begun := last[flush]; begun && n != before+1 {
			w.Errorf("operation %d of key %d follows %d in a flush", n, key, before)
		}
		last[flush] = n
		switch {
		case n == next[key]:
			next[key]++
		case n < next[key]:
			again++
		default:
			w.Errorf("operation %d of key %d comes before %d", n, key, next[key])
		}
	}
	for key, n := range next {
		if n != opsOfFlushed {
			w.Errorf("%d operations of key %d were carried out; want %d", n, key, opsOfFlushed)
		}
	}
	return again
}

// stopped reports whether a child stands still.
func (w *world) stopped(p *process) bool {
	w.Helper()
	return w.stat(p)[0] == "T"
}

// A node is killed while a service works on its flushes. Another one takes its keys when its session is over; nothing
// is lost, what was asked is asked again, and nothing overtakes anything.
func TestNodeIsKilledInMidFlush(t *testing.T) {
	t.Parallel()
	w := setup(t)
	service := w.start("flushed", stopVariable+"=200")
	w.gatherOps()
	// It keeps one session until it is killed, however slow the machine is.
	first := w.start("node", sessionVariable+"=1m")
	w.until("some operations are done", func() bool {
		return w.number(`SELECT count(*) FROM collector_op`) < flushedKeys*opsOfFlushed
	})
	w.until("the service stands still", func() bool { return w.stopped(service) })
	w.until("the node waits for the service", func() bool {
		return w.number(`SELECT count(*) FROM collector_key
			WHERE flushed_at < tranche_now() - interval '500ms' AND flush IS NOT NULL`) >= 8
	})
	// The other lives on whatever the machine does: its own flushes are not to be asked for again.
	w.start("node", sessionVariable+"=1m")
	w.signal(first, syscall.SIGKILL)
	w.wantKilled(first)
	holds := func() int {
		return w.number(`SELECT count(*) FROM collector_key WHERE session_id = $1`, first.session())
	}
	held := holds()
	if left := w.number(`SELECT count(*) FROM collector_op`); held == 0 || left == 0 {
		t.Fatalf("the node held %d keys, and %d operations were left", held, left)
	}
	w.signal(service, syscall.SIGCONT)
	expires := w.expire(first)
	w.until("the dead node's keys are free", func() bool { return holds() == 0 })
	now, err := schedule.New(w.store).DatabaseTime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	freed := now.Sub(expires)
	w.until("everything is done", func() bool { return w.number(`SELECT count(*) FROM collector_key`) == 0 })
	if late := time.Duration(collector.DefaultFlushTimeout) / 2; freed >= late { // or it was a time of theirs
		t.Errorf("its keys are free %s after the end of its session; want %s at the most", freed, late)
	}
	again := w.ledgerOfOps()
	if again == 0 || again > held*6 {
		t.Errorf("%d operations were carried out again; it held %d keys, of 6 at the most", again, held)
	}
	if n := w.number(`SELECT count(*) FROM collector_op`); n != 0 {
		t.Errorf("%d operations are left", n)
	}
	t.Logf("it held %d keys, which were free %s after the end of its session; %d operations were carried out again",
		held, freed, again)
}
