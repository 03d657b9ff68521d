package flush

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
)

// What was claimed just now is asked for. After a while the database is asked whose a key is, and keeps it; a key of a
// session that is over is not the node's any more, although nobody has taken it yet.
func TestKeysAreLookedAtAgainAfterAWhile(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	store, claimed := claimedKeys(t, pool, "a", "b")
	if _, err := pool.Exec(t.Context(), `UPDATE collector_key SET flush_until = tranche_now(),
		flush = CASE key WHEN 'b' THEN gen_random_uuid() ELSE flush END`); err != nil {
		t.Fatal(err)
	}
	w := &flight{claimed: claimed}
	away := database.New(closedPool(t, pool))
	of := map[string]uuid.UUID{}
	for _, f := range claimed.Flushes {
		of[f.Key] = f.ID
	}
	is := func(h *hold, store *database.DB, key string, want bool) {
		t.Helper()
		if has, err := h.has(t.Context(), store, w, of[key]); has != want || err != nil {
			t.Errorf("whether the flush has key %s: %t, %v; want %t", key, has, err, want)
		}
	}
	h := newHold(time.Now(), time.Hour)
	h.trust = time.Hour
	is(h, away, "a", true) // nobody is asked
	h = newHold(time.Now().Add(-time.Minute), time.Hour)
	if has, err := h.has(t.Context(), away, w, of["a"]); has || err == nil {
		t.Errorf("without an answer the key counts as its flush's: %t, %v", has, err)
	}
	is(h, store, "a", true)
	is(h, store, "b", false) // somebody else's
	if until := keysKept(t, pool); len(until) != 1 || until[0] != "a" {
		t.Errorf("kept are %v", until)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE node_session SET expires_at = tranche_now()`); err != nil {
		t.Fatal(err)
	}
	is(newHold(time.Now().Add(-time.Minute), time.Hour), store, "a", false)
}
