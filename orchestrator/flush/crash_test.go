package flush_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

const (
	foldedUsers  = 12 // who share four keys
	foldedRounds = 40 // an update of each user; the node crashes on the second half of them
)

// updates is what a service was sent, for [updates.check].
type updates struct {
	mu   sync.Mutex
	sent []update
}

type update struct {
	flush   string
	user, n int
	fields  map[string]int
}

func (u *updates) serve(t *testing.T, b *bundle, before func(sent int)) {
	t.Helper()
	svc, err := endpoints.New(testenv.Conn(t, b.NS), endpoints.Config{Name: "flushed", Version: "1.0.0"})
	testenv.NoError(t, err)
	type chunk = endpoints.Chunk[map[string]int, nodetest.Statement]
	err = endpoints.HandleList(svc, "flushed", func(_ context.Context, c *chunk) error {
		for _, item := range c.Items() {
			next := update{flush: c.Meta().Slice.String(), fields: item.In}
			if _, err := fmt.Sscanf(item.Key, "%d/%d", &next.user, &next.n); err != nil {
				return err
			}
			u.mu.Lock()
			u.sent = append(u.sent, next)
			sent := len(u.sent)
			u.mu.Unlock()
			before(sent)
			item.Reply(nodetest.Statement{Of: item.Key})
		}
		return nil
	}, endpoints.Concurrency(16))
	testenv.NoError(t, err)
	nodetest.Run(t, "service", svc.Run)
}

// check reports how many updates were sent, and how many again. Of a user nothing older follows, merged updates leave
// none out, and without a fold each comes.
func (u *updates) check(t *testing.T, how string, users, rounds int) (sent, again int) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	next, last := make([]int, users), map[string]int{}
	for _, s := range u.sent {
		if s.n < next[s.user] {
			again++
		}
		before, begun := last[s.flush]
		switch last[s.flush] = s.n; {
		case how == collectorstore.FoldLast && (len(s.fields) != 1 || s.fields["f"] != s.n):
			t.Errorf("user %d: update %d carries %v", s.user, s.n, s.fields)
		case how == "" && (begun && s.n != before+1 || s.n > next[s.user]):
			t.Errorf("user %d: update %d comes before %d, and after %d of its flush", s.user, s.n, next[s.user], before)
		case how != "" && s.n < next[s.user]-1:
			t.Errorf("user %d: update %d follows %d", s.user, s.n, next[s.user]-1)
		}
		for i := next[s.user]; how == collectorstore.FoldMerge && i <= s.n; i++ {
			if got, there := s.fields[fmt.Sprint("f", i)]; !there || got != i {
				t.Errorf("user %d: update %d, up to %d, leaves out %d: %v", s.user, next[s.user], s.n, i, s.fields)
			}
		}
		next[s.user] = max(next[s.user], s.n+1)
	}
	if i := slices.IndexFunc(next, func(n int) bool { return n != rounds }); i >= 0 {
		t.Errorf("the last update of user %d is %d; want %d", i, next[i]-1, rounds-1)
	}
	return len(u.sent), again
}

// apply makes the collector of the updates.
func (u *updates) apply(t *testing.T, b *bundle, spec *collectorstore.CollectorSpec) {
	t.Helper()
	spec.Name, spec.Endpoint, spec.InFlight, spec.Dedupe = "flushed", "flushed", 16, collectorstore.DefaultDedupe
	spec.Timeout = collectorstore.Span(10 * time.Minute) // what comes again comes with the session
	if _, err := collectorstore.New(b.Store).ApplyCollector(t.Context(), collectorstore.Text{Name: spec.Name,
		Spec: spec.WithDefaults(), Source: "endpoint: flushed"}, "test"); err != nil {
		t.Fatal(err)
	}
}

// add adds rounds of updates, whose number n sets the field f, or fn where updates are merged.
func (u *updates) add(t *testing.T, b *bundle, how string, users, keys, from, to int) collectorstore.AddedOps {
	t.Helper()
	var ops []collectorstore.Op
	for n := from; n < to; n++ {
		field := "f"
		if how == collectorstore.FoldMerge {
			field = fmt.Sprint("f", n)
		}
		for user := range users {
			op := collectorstore.Op{ID: fmt.Sprint(user, "/", n), Key: fmt.Sprint("k", user%keys),
				Payload: json.RawMessage(fmt.Appendf(nil, `{%q:%d}`, field, n))}
			if how != "" {
				op.Fold = fmt.Sprint(user)
			}
			ops = append(ops, op)
		}
	}
	out, _, err := collectorstore.New(b.Store).AddOps(t.Context(), "flushed", 0, [][]collectorstore.Op{ops})
	testenv.NoError(t, err)
	return out[0]
}

// bare is a bundle without a node.
func bare(t *testing.T) *bundle {
	t.Helper()
	return &bundle{nodetest.ServersOnly(t)}
}

// A node crashes while a service works on its flushes. Another one takes its keys when its session is over; nothing is
// lost, what was asked is asked again, and nothing overtakes anything.
func TestANodeCrashesInMidFlush(t *testing.T) {
	t.Parallel()
	const keys, each, size = 24, 30, 6
	b, u := bare(t), &updates{}
	stuck, wake := make(chan struct{}), make(chan struct{})
	u.serve(t, b, func(sent int) {
		if sent == 200 {
			close(stuck)
		}
		if sent >= 200 {
			<-wake
		}
	})
	u.apply(t, b, &collectorstore.CollectorSpec{MinSize: 3, MaxSize: size,
		MaxAge: collectorstore.Span(50 * time.Millisecond)})
	u.add(t, b, "", keys, keys, 0, each)
	first := b.Doom(t)
	first.Start(t, "", 1, orchestrator.Config{})
	<-stuck
	b.Await(t, "it waits for the service", `SELECT count(*) >= 8 FROM collector_key WHERE flush IS NOT NULL`)
	first.Crash()
	held := b.Number(t, `SELECT count(*) FROM collector_key WHERE session_id = $1`, first.Session())
	close(wake)
	first.Await(t, b.Bundle)
	b.StartNode(t)
	b.Await(t, "everything is flushed", noOps)
	if _, again := u.check(t, "", keys, each); again == 0 || again > held*size {
		t.Errorf("%d operations were carried out again; it held %d keys, of %d at most", again, held, size)
	}
}

// A node crashes while it folds, or records what it had folded: it waits there for a lock. Another one takes its keys:
// no update is lost, none is done after a newer one, what no one was asked for is asked for once, and all that was
// added is acknowledged.
func TestANodeCrashesWhileItFolds(t *testing.T) {
	t.Parallel()
	for moment, at := range map[string]struct {
		lock  string
		waits string // what it waits with
		asked bool   // the service has been, by then
	}{
		"folding":   {`LOCK TABLE collector_op IN ACCESS EXCLUSIVE MODE`, `%min(v.nth) OVER%`, false},
		"recording": {`LOCK TABLE collector_op IN SHARE MODE`, `%DELETE FROM collector_op%`, true},
	} {
		for _, how := range []string{collectorstore.FoldLast, collectorstore.FoldMerge} {
			t.Run(how+", "+moment, func(t *testing.T) {
				t.Parallel()
				const size = 2
				b, u := bare(t), &updates{}
				u.serve(t, b, func(int) {})
				u.apply(t, b, &collectorstore.CollectorSpec{MinSize: 1, MaxSize: size, Strict: true, Fold: how})
				first := b.Doom(t)
				first.Start(t, "", 1, orchestrator.Config{})
				u.add(t, b, how, foldedUsers, 4, 0, foldedRounds/2)
				b.Await(t, "the first half is done", noOps)
				if _, again := u.check(t, how, foldedUsers, foldedRounds/2); again != 0 {
					t.Errorf("%d updates were done again without a fault", again)
				}
				held := b.crashAt(t, first, at.lock, at.waits, func() {
					u.add(t, b, how, foldedUsers, 4, foldedRounds/2, foldedRounds)
				})
				first.Await(t, b.Bundle)
				b.StartNode(t)
				b.Await(t, "everything is done", noOps)
				sent, again := u.check(t, how, foldedUsers, foldedRounds)
				if at.asked != (again > 0) || again > held*size {
					t.Errorf("%d updates were done again after the crash; the node held %d keys", again, held)
				}
				if sent >= foldedUsers*foldedRounds {
					t.Errorf("%d updates were sent, as many as there were: nothing was folded", sent)
				}
				if done := u.add(t, b, how, foldedUsers, 4, 0, foldedRounds); done.Added != 0 ||
					done.Duplicates != foldedUsers*foldedRounds {
					t.Errorf("added again, %d updates are new and %d known; all were acknowledged", done.Added, done.Duplicates)
				}
			})
		}
	}
}

// crashAt has a node crash where it waits for a lock, with what add adds. It returns how many keys it held.
func (b *bundle) crashAt(t *testing.T, node *nodetest.Doomed, lock, waits string, add func()) (held int) {
	t.Helper()
	collectors := collectorstore.New(b.Store)
	testenv.Must(collectors.SetCollector(t.Context(), "flushed", workqueue.DocumentPaused, false, "test"))(t)
	add()
	tx, err := b.Pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), lock)
	}
	testenv.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }() // most have ended by now
	testenv.Must(collectors.SetCollector(t.Context(), "flushed", workqueue.DocumentActive, false, "test"))(t)
	nodetest.Until(t, "the node waits for the lock", func() bool {
		return b.Number(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE $1`, waits) > 0
	})
	held = b.Number(t, `SELECT count(*) FROM collector_key WHERE session_id = $1`, node.Session())
	node.Crash()
	testenv.NoError(t, tx.Rollback(t.Context()))
	if held == 0 {
		t.Fatal("the node crashed with no key")
	}
	return held
}
