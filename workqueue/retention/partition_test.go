package retention_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// Where an id leads is PostgreSQL's to say.
func TestTheIDChoosesThePartition(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	ids, want := make([]workqueue.RunID, 0, 40*workqueue.Partitions), []int{}
	last := workqueue.NewRunID()
	for n := range cap(ids) {
		id, partition := workqueue.NewRunIDIn(n%workqueue.Partitions), n%workqueue.Partitions
		if string(id[:8]) < string(last[:8]) || uuid.UUID(id).Version() != 7 || uuid.UUID(id).Variant() != uuid.RFC4122 {
			t.Fatalf("%s comes after %s", id, last)
		}
		ids, want, last = append(ids, id), append(want, partition), id
	}
	for range 1000 { // of any kind
		id := workqueue.RunID(uuid.New())
		ids, want = append(ids, id), append(want, id.Partition())
	}
	for _, table := range []string{"work_queue", "work_result"} {
		var wrong int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM unnest($1::uuid[], $2::int[]) u (id, partition)
			WHERE NOT satisfies_hash_partition($3::text::regclass, $4, partition, id)`, ids, want, table,
			workqueue.Partitions).Scan(&wrong)
		if err != nil || wrong != 0 {
			t.Errorf("%d of %d ids lead to another partition of %s, %v", wrong, len(ids), table, err)
		}
	}
	if p := workqueue.NewRunID().Partition(); p != 0 {
		t.Errorf("a run that says nothing is in partition %d", p)
	}
}
