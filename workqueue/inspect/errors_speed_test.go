package inspect_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// How long it takes to group the failures of a million items, and to select such a group:
// TRANCHE_ERRORS_ITEMS=1000000 go test ./workqueue/inspect -run TestErrorsAreFast -v.
func TestErrorsAreFast(t *testing.T) {
	t.Parallel()
	items := 20_000
	if _, err := fmt.Sscan(os.Getenv("TRANCHE_ERRORS_ITEMS"), &items); err != nil {
		items = 20_000
	}
	for message, groups := range map[string]int{
		`'customer C' || n || ' is unknown, after ' || n % 900 || ' ms'`:                  1,
		`'customer K-' || md5(n::text) || ' has no branch'`:                               1,
		`'no account of x' || translate(n::text, '0123456789', 'ghijklmnop') || ' there'`: 1,
		`'branch ' || chr(97 + n % 26) || ' does not answer'`:                             26,
		`'none of them has ' || translate(n::text, '0123456789', 'ghijklmnop')`:           1000,
	} {
		b := setup(t)
		run := b.failedAll(items, message)
		took := time.Hour
		for range 3 {
			b.Store = database.New(b.Pool)
			begun := time.Now()
			if found := b.errors(run); len(found.Groups) != groups || found.Items != int64(items) {
				t.Errorf("%s: %d groups of %d items; want %d", message, len(found.Groups), found.Items, groups)
			}
			took = min(took, time.Since(begun))
		}
		begun := time.Now()
		if _, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, DryRun: true, Actor: "test",
			Select: redo.Selection{Groups: []string{b.errors(run).Groups[0].ID}}}); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: grouped in %s, selected in %s", message, took.Round(time.Millisecond),
			time.Since(begun).Round(time.Millisecond))
	}
}

// failedAll makes a run of which every item has failed, without the work. message is SQL on the ordinal n, whose item
// has the key C and the number, K- and a hash of it, or its digits as letters, as the message has them.
func (b *bench) failedAll(items int, message string) workqueue.RunID {
	b.Helper()
	run := b.Load(storetest.Chunked(500), items)
	b.Exec(`UPDATE work_queue SET item_key = CASE WHEN $2 LIKE '%K-%' THEN 'K-' || md5(ordinal::text)
		WHEN $2 LIKE '%x%translate%' THEN 'x' || translate(ordinal::text, '0123456789', 'ghijklmnop') ELSE item_key END
		WHERE run_id = $1`, run, message)
	b.Exec(`INSERT INTO work_part (run_id, slice_id, ordinal, generation, step, error_code, error_message, error_keyed)
		SELECT p.run_id, gen_random_uuid(), ordinal, 1, 0, 'BAD', error_message, `+plane.ErrorKeyed+`
		FROM (SELECT $1::uuid AS run_id, n AS ordinal, `+message+` AS error_message
			FROM generate_series(0, $2::int - 1) n) p `+plane.KeyOfPart, run, items)
	b.Exec(`UPDATE work_part p SET slice_id = s.id FROM (SELECT n, gen_random_uuid() AS id
		FROM generate_series(0, $2::int / 500) n) s WHERE p.run_id = $1 AND s.n = p.ordinal / 500`, run, items)
	b.Exec(`UPDATE work_block SET ready = B'0'::bit(8192), failed = ready WHERE run_id = $1`, run)
	b.Exec(`UPDATE tracker_group SET pending = B'0'::bit(8192) WHERE batch_id = $1`, run)
	b.Exec(`UPDATE tracker_batch SET open_groups = 0, state = 'completed', completed_at = tranche_now()
		WHERE id = $1`, run)
	b.Exec(`UPDATE batchrun SET state = 'completed', finished_at = tranche_now(), done = 0, failed = items
		WHERE id = $1`, run)
	b.Exec(`ANALYZE`)
	return run
}
