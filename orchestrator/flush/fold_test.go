package flush_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// Two nodes flush updates of users who share keys, while more are added and some fail: of each user newer ones only
// follow older ones, and the last has come in the end.
func TestFoldedUpdatesNeverGoBackInTime(t *testing.T) {
	t.Parallel()
	const users, rounds = 40, 60
	b := setup(t)
	other := b.StartNode(t)
	var mu sync.Mutex
	last, came, failed := map[int]int{}, 0, map[string]bool{}
	b.Serve(t, "folded", func(_ context.Context, chunk *nodetest.Chunk) error {
		mu.Lock()
		defer mu.Unlock()
		for _, item := range chunk.Items() {
			user, number := opOf(t, item)
			if (user+number)%9 == 4 && !failed[item.Key] { // some of each round, since not every round comes
				failed[item.Key] = true
				item.Retry("not_yet", "later")
				continue
			}
			if before, known := last[user]; known && before >= number {
				t.Errorf("user %d: update %d after %d", user, number, before)
			}
			last[user], came = number, came+1
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	}, endpoints.Concurrency(8))
	b.gather(t, "folded", func(s *collectorstore.CollectorSpec) { s.Fold, s.Strict = collectorstore.FoldLast, true })
	if _, err := collectorstore.New(b.Store).SetCollector(t.Context(),
		"folded", workqueue.DocumentPaused, false, "test"); err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		if round == 2 { // of the first two there is something to fold, however fast they are flushed
			if _, err := b.Node.Collectors().SetCollector(t.Context(),
				"folded", workqueue.DocumentActive, false, "test"); err != nil {
				t.Fatal(err)
			}
		}
		ops := make([]collectorstore.Op, users)
		for user := range ops {
			ops[user] = collectorstore.Op{ID: fmt.Sprintf("%d-%d", user, round), Key: fmt.Sprint("k", user%4),
				Fold: fmt.Sprint(user), Payload: fmt.Appendf(nil, `{"id":"%d %d"}`, user, round)}
		}
		if _, err := b.Node.Collectors().AddOps(t.Context(), "folded", 0, [][]collectorstore.Op{ops}); err != nil {
			t.Fatal(err)
		}
	}
	b.Await(t, "everything is done", noOps)
	mu.Lock()
	defer mu.Unlock()
	for user := range users {
		if last[user] != rounds-1 {
			t.Errorf("user %d is at update %d", user, last[user])
		}
	}
	if came >= users*rounds || len(failed) == 0 {
		t.Errorf("%d of %d updates came, and %d failed: the test shows too little", came, users*rounds, len(failed))
	}
	nodetest.Until(t, "the nodes have counted what they flushed", func() bool {
		return b.Node.Stats().FlushedOps+other.Stats().FlushedOps > 0
	})
}
