package systest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/tranchehq/tranche/workqueue/collector"
)

const (
	foldedUsers  = 12 // who share four keys
	foldedRounds = 40 // an update of each user; the node dies on the second half of them
)

// moment is a place at which a node is killed: it waits there for a lock that the test has on the operations.
type moment struct {
	name  string
	lock  string
	waits string // what it waits with, in its first thousand bytes
	again bool   // the service has been asked by then
}

func moments() []moment {
	return []moment{
		{"folding", `LOCK TABLE collector_op IN ACCESS EXCLUSIVE MODE`, `%min(v.nth) OVER%`, false},
		{"recording what was folded", `LOCK TABLE collector_op IN SHARE MODE`, `%DELETE FROM collector_op%`, true},
	}
}

// A node is killed while it folds, or records what it had folded. Another one takes its keys: no update is lost, none
// is done after a newer one, what nobody was asked for is asked for once, and all that was added is acknowledged.
func TestNodeIsKilledWhileItFolds(t *testing.T) {
	t.Parallel()
	for _, how := range []string{collector.FoldLast, collector.FoldMerge} {
		for _, at := range moments() {
			t.Run(how+", "+at.name, func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				w.start("flushed", stopVariable+"=0")
				collectors := collector.New(w.store)
				spec := collector.CollectorSpec{Name: "flushed", Endpoint: "flushed", MinSize: 1, MaxSize: 2, Strict: true,
					InFlight: 16, Fold: how, Dedupe: collector.DefaultDedupe}.WithDefaults()
				if _, err := collectors.ApplyCollector(t.Context(), collector.Text{Name: spec.Name, Spec: spec,
					Source: "endpoint: flushed"}, "test"); err != nil {
					t.Fatal(err)
				}
				first := w.start("node", sessionVariable+"=1m")
				w.addUpdates(how, 0, foldedRounds/2)
				noOps := func() bool { return w.number(`SELECT count(*) FROM collector_op`) == 0 }
				w.until("the first half is done", noOps)
				before := w.updates(how)
				held := w.killAt(first, &at, func() { w.addUpdates(how, foldedRounds/2, foldedRounds) })
				w.expire(first)
				w.start("node", sessionVariable+"=1m")
				w.until("everything is done", func() bool { return w.number(`SELECT count(*) FROM collector_key`) == 0 })
				if !noOps() {
					t.Error("operations are left without a key")
				}
				after := w.updates(how)
				again := after.again - before.again
				if before.again != 0 || at.again != (again > 0) || again > held*spec.MaxSize {
					t.Errorf("%d updates were done again before the kill, and %d after it; the node held %d keys", before.again,
						again, held)
				}
				if after.sent >= foldedUsers*foldedRounds {
					t.Errorf("%d updates were sent, as many as there were: nothing was folded", after.sent)
				}
				if done := w.addUpdates(how, 0, foldedRounds); done.Added != 0 ||
					done.Duplicates != foldedUsers*foldedRounds || !noOps() {
					t.Errorf("added again, %d updates are new and %d known; all were acknowledged", done.Added, done.Duplicates)
				}
				t.Logf("%d updates were sent, %d of them again", after.sent, again)
			})
		}
	}
}

// addUpdates adds rounds of updates: number n sets the field fn, or what there is to n.
func (w *world) addUpdates(how string, from, to int) collector.AddedOps {
	w.Helper()
	var ops []collector.Op
	for n := from; n < to; n++ {
		field := "f"
		if how == collector.FoldMerge {
			field = fmt.Sprint("f", n)
		}
		for user := range foldedUsers {
			ops = append(ops, collector.Op{ID: fmt.Sprint(user, "/", n), Key: fmt.Sprint("k", user%4),
				Fold: fmt.Sprint(user), Payload: fmt.Appendf(nil, `{%q:%d}`, field, n)})
		}
	}
	out, _, err := collector.New(w.store).AddOps(w.Context(), "flushed", 0, [][]collector.Op{ops})
	if err != nil {
		w.Fatal(err)
	}
	return out[0]
}

// killAt has a node come to a moment with what add adds, and kills it there. It returns how many keys it held.
func (w *world) killAt(node *process, at *moment, add func()) (held int) {
	w.Helper()
	collectors := collector.New(w.store)
	if _, err := collectors.PauseCollector(w.Context(), "flushed", "test"); err != nil {
		w.Fatal(err)
	}
	add()
	tx, err := w.pool.Begin(w.Context())
	if err == nil {
		_, err = tx.Exec(w.Context(), at.lock)
	}
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // most have ended by now
	if _, err := collectors.ResumeCollector(w.Context(), "flushed", "test"); err != nil {
		w.Fatal(err)
	}
	w.until("the node is "+at.name, func() bool {
		return w.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE $1`, at.waits) > 0
	})
	held = w.number(`SELECT count(*) FROM collector_key WHERE session_id = $1`, node.session())
	w.signal(node, syscall.SIGKILL)
	w.wantKilled(node)
	if err := tx.Rollback(w.Context()); err != nil {
		w.Fatal(err)
	}
	if held == 0 {
		w.Fatal("the node was killed with no key")
	}
	return held
}

// sent is what the ledger says of updates.
type sent struct {
	sent, again int // again: with nothing that is newer than what was sent of the user before
}

// updates reads the ledger. Of a user nothing older follows, and merged updates leave none out.
func (w *world) updates(how string) (out sent) {
	w.Helper()
	text, err := os.ReadFile(w.ledger)
	if err != nil {
		w.Fatal(err)
	}
	next := [foldedUsers]int{} // the first update that has not been sent
	for line := range strings.Lines(string(text)) {
		id, payload, _ := strings.Cut(line[strings.Index(line, " ")+1:], " ")
		var user, n int
		fields := map[string]int{}
		if _, err := fmt.Sscanf(id, "%d/%d", &user, &n); err != nil {
			w.Fatalf("ledger line %q: %v", line, err)
		}
		if err := json.Unmarshal([]byte(payload), &fields); err != nil {
			w.Fatalf("ledger line %q: %v", line, err)
		}
		out.sent++
		if n < next[user] {
			out.again++
		}
		if n < next[user]-1 {
			w.Errorf("user %d: update %d follows %d", user, n, next[user]-1)
		}
		if how == collector.FoldLast && (len(fields) != 1 || fields["f"] != n) {
			w.Errorf("user %d: update %d carries %s", user, n, payload)
		}
		for i := next[user]; how == collector.FoldMerge && i <= n; i++ {
			if fields[fmt.Sprint("f", i)] != i || len(fields) == 0 {
				w.Errorf("user %d: update %d, up to %d, leaves out %d: %s", user, next[user], n, i, payload)
			}
		}
		next[user] = max(next[user], n+1)
	}
	return out
}
