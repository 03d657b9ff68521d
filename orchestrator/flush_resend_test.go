package orchestrator

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// A request is sent again only while its flush is waited for and has its key, and both are so for as long again: else
// the service might begin with it beside the next flush of the key.
func TestOnlyFlushesThatKeepTheirKeysAreSentAgain(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	store := workqueue.New(pool)
	spec := workqueue.CollectorSpec{Endpoint: "e", MinSize: 1, MaxSize: 1, Timeout: workqueue.Span(time.Hour)}
	if _, err := store.ApplyCollector(t.Context(), workqueue.CollectorText{Name: "c", Spec: spec.WithDefaults(),
		Source: "c"}, "ann"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.AddOps(t.Context(), "c", 0, [][]workqueue.Op{{{Key: "a"}, {Key: "b"}, {Key: "c"}}}); err != nil {
		t.Fatal(err)
	}
	session, err := store.StartSession(t.Context(), workqueue.NodeInfo{Host: "h"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := store.ClaimFlushes(t.Context(), workqueue.FlushRequest{Session: session, Collector: 1, Max: 10})
	if err != nil || len(claimed.Flushes) != 3 {
		t.Fatalf("claimed %+v, %v", claimed.Flushes, err)
	}
	_, err = pool.Exec(t.Context(), `UPDATE collector_key SET flush_until = clock_timestamp() + interval '1 min'`)
	if err != nil {
		t.Fatal(err)
	}
	s := newSentFlushes(&Node{store: store, log: zaptest.NewLogger(t)})
	out := func(token string, id uuid.UUID, limit time.Duration) func() error {
		timed, stop := s.limit(t.Context(), token, id, limit)
		t.Cleanup(stop)
		return func() error { <-timed.Done(); return timed.Err() }
	}
	out("live", claimed.Flushes[0].ID, time.Hour)
	over := out("over", claimed.Flushes[1].ID, time.Millisecond)
	out("lost", uuid.New(), time.Hour)
	if over() == nil {
		t.Fatal("its time is not over")
	}
	_, stop := s.limit(t.Context(), "answered", claimed.Flushes[2].ID, time.Hour)
	stop()
	again := s.renew([]string{"live", "over", "lost", "answered", "of somebody else"})
	if !slices.Equal(again, []string{"live"}) {
		t.Errorf("%v are sent again", again)
	}
	var until []string
	rows, err := pool.Query(t.Context(), `SELECT key FROM collector_key
		WHERE flush_until > clock_timestamp() + interval '59 min' ORDER BY key`)
	for err == nil && rows.Next() {
		var key string
		err = rows.Scan(&key)
		until = append(until, key)
	}
	if err != nil || !slices.Contains(until, claimed.Flushes[0].Key) || slices.Contains(until, claimed.Flushes[2].Key) {
		t.Errorf("kept for longer: %v, %v", until, err)
	}
	if again := s.renew([]string{"lost"}); len(again) != 0 {
		t.Errorf("%v are sent again", again)
	}
}
