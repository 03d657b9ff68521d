package flush

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// A request is sent again only while its flush is waited for and has its key, and both are so for as long again: else
// the service might begin with it beside the next flush of the key. That has an end, it is not sent twice at once, and
// when the database does not say whose its key is, it is asked again.
func TestOnlyFlushesThatKeepTheirKeysAreSentAgain(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	store, claimed := claimedKeys(t, pool, "a", "b", "c")
	_, err := pool.Exec(t.Context(), `UPDATE collector_key SET flush_until = tranche_now() + interval '1 min'`)
	if err != nil {
		t.Fatal(err)
	}
	s := newSentFlushes(core.New(store, nil, nil, zaptest.NewLogger(t)))
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
	s.all["over"].last = time.Now().Add(time.Hour) // its wait has ended, and it might have begun again
	_, stop := s.limit(t.Context(), "answered", claimed.Flushes[2].ID, time.Hour)
	stop()
	s.store = database.New(closedPool(t, pool)) // a database that is away
	tokens := []string{"live", "over", "lost", "answered", "of somebody else"}
	again, later := s.renew(tokens)
	if slices.Sort(later); len(again) != 0 || !slices.Equal(later, []string{"live", "lost", "over"}) {
		t.Errorf("%v are sent again although nobody knows whose their keys are, and %v later", again, later)
	}
	s.store = store
	if again := renewed(s, later); !slices.Equal(again, []string{"live"}) {
		t.Errorf("%v are sent again", again)
	}
	until := keysKept(t, pool)
	if !slices.Contains(until, claimed.Flushes[0].Key) || slices.Contains(until, claimed.Flushes[2].Key) {
		t.Errorf("kept for longer: %v", until)
	}
	if again := renewed(s, []string{"lost"}); len(again) != 0 {
		t.Errorf("%v are sent again", again)
	}
	s.all["live"].tried = time.Now().Add(time.Minute)
	if again, later := s.renew([]string{"live"}); len(again)+len(later) != 0 {
		t.Errorf("%v are sent again at once, %v later", again, later)
	}
	s.all["live"].last = time.Now().Add(10 * time.Minute)
	if again := renewed(s, []string{"live"}); !slices.Equal(again, []string{"live"}) {
		t.Errorf("%v are sent again", again)
	}
	if until := keysKept(t, pool); len(until) != 0 {
		t.Errorf("%v are kept for more than twice the time of a flush", until)
	}
	s.all["live"].last = time.Now()
	if again := renewed(s, []string{"live"}); len(again) != 0 {
		t.Errorf("%v are sent again, and their time is over", again)
	}
}

// claimedKeys has a session claim the keys of a collector, of which each has one operation.
func claimedKeys(t *testing.T, pool *pgxpool.Pool, keys ...string) (*database.DB, collectorstore.ClaimedFlushes) {
	t.Helper()
	store := database.New(pool)
	spec := collectorstore.CollectorSpec{Endpoint: "e", MinSize: 1, MaxSize: 1, Timeout: collectorstore.Span(time.Hour)}
	if _, err := collectorstore.New(store).ApplyCollector(t.Context(),
		collectorstore.Text{Name: "c", Spec: spec.WithDefaults(),
			Source: "c"}, "ann"); err != nil {
		t.Fatal(err)
	}
	ops := make([]collectorstore.Op, len(keys))
	for i, key := range keys {
		ops[i].Key = key
	}
	if _, _, err := collectorstore.New(store).AddOps(t.Context(), "c", 0, [][]collectorstore.Op{ops}); err != nil {
		t.Fatal(err)
	}
	session, err := session.New(store).StartSession(t.Context(), session.NodeInfo{Host: "h"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := collectorstore.New(store).ClaimFlushes(t.Context(), collectorstore.FlushRequest{Session: session,
		Collector: 1, Max: 10})
	if err != nil || len(claimed.Flushes) != len(keys) {
		t.Fatalf("claimed %+v, %v", claimed.Flushes, err)
	}
	return store, claimed
}

// renewed renews, however long the database takes for it.
func renewed(s *sentFlushes, tokens []string) (again []string) {
	for len(tokens) > 0 {
		for _, f := range s.all {
			f.tried = time.Time{}
		}
		again, tokens = s.renew(tokens)
	}
	return again
}

// keysKept are those that are kept for the time of a flush.
func keysKept(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT key FROM collector_key
		WHERE flush_until > tranche_now() + interval '59 min' ORDER BY key`)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// closedPool is a pool of the same database that gives no connections.
func closedPool(t *testing.T, like *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), like.Config())
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	return pool
}
