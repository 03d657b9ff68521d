package nodetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

type execution struct {
	Run        workqueue.RunID
	Ordinal    int
	Generation int
	Slice      workqueue.SliceID
}

// Ledger records executions outside the system. At a mark they wait, so that a test can break something meanwhile.
type Ledger struct {
	mark    int
	reached chan struct{}
	Gate    chan struct{}

	mu    sync.Mutex
	total int
	seen  map[execution]int
}

// NewLedger returns a ledger whose services wait after mark items until Gate is closed; 0: they do not.
func NewLedger(mark int) *Ledger {
	return &Ledger{mark: mark, reached: make(chan struct{}), Gate: make(chan struct{}), seen: map[execution]int{}}
}

// Handle records the items of a chunk and answers them.
func (l *Ledger) Handle(ctx context.Context, chunk *Chunk) error {
	var ordinals []int
	for _, item := range chunk.Items() {
		ordinals = append(ordinals, item.Ordinal)
	}
	if err := l.Take(ctx, chunk.Meta(), ordinals...); err != nil {
		return err
	}
	return Echo(ctx, chunk)
}

// Take records items of a request, and waits at the gate.
func (l *Ledger) Take(ctx context.Context, of wire.Meta, ordinals ...int) error {
	l.mu.Lock()
	for _, ordinal := range ordinals {
		l.seen[execution{workqueue.RunID(of.Run), ordinal, of.Generation, workqueue.SliceID(of.Slice)}]++
	}
	before := l.total
	l.total += len(ordinals)
	if l.mark > 0 && before < l.mark && l.total >= l.mark {
		close(l.reached)
	}
	waits := l.mark > 0 && l.total >= l.mark
	l.mu.Unlock()
	if !waits {
		return nil
	}
	select {
	case <-l.Gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Extra returns the number of executions beyond one per item, in other slices: JetStream redelivers a request whose
// acknowledgement is lost or late.
func (l *Ledger) Extra(items int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen) - items
}

// Await waits until services have reached the mark.
func (l *Ledger) Await(t *testing.T) {
	t.Helper()
	select {
	case <-l.reached:
	case <-time.After(Stuck):
		t.Fatal("the services did not come to the mark")
	}
}

func (l *Ledger) counts(run workqueue.RunID, generation int) map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[int]int{}
	for e, n := range l.seen {
		if e.Run == run && e.Generation == generation {
			counts[e.Ordinal] += n
		}
	}
	return counts
}

// WantOnce checks that every item was executed exactly once, as without faults (I5).
func (l *Ledger) WantOnce(t *testing.T, run workqueue.RunID, items int) {
	t.Helper()
	counts := l.counts(run, 1)
	testenv.Same(t, len(counts), items, "executed items")
	for item, n := range counts {
		if n != 1 {
			t.Errorf("item %d was executed %d times without a fault", item, n)
			return
		}
	}
}

// wantBounded checks that every item was executed, and each execution belongs to a slice with its item (I5).
func (b *Bundle) wantBounded(t *testing.T, l *Ledger, run workqueue.RunID, items int) {
	t.Helper()
	testenv.Same(t, len(l.counts(run, 1)), items, "executed items")
	var slices []workqueue.SliceID
	var ordinals, times []int
	l.mu.Lock()
	for e, n := range l.seen {
		slices, ordinals, times = append(slices, e.Slice), append(ordinals, e.Ordinal), append(times, n)
	}
	l.mu.Unlock()
	var stray, often int
	err := b.Pool.QueryRow(context.Background(), `
		SELECT count(*) FILTER (WHERE s.id IS NULL OR get_bit(s.mask, u.ordinal % 8192) = 0), coalesce(max(u.n), 0)
		FROM unnest($1::uuid[], $2::int[], $3::int[]) AS u (slice, ordinal, n)
		LEFT JOIN work_slice s ON s.id = u.slice AND s.block = u.ordinal / 8192`, slices, ordinals, times).
		Scan(&stray, &often)
	testenv.NoError(t, err)
	testenv.Same(t, stray, 0, "executions of items that no such slice held")
	if limit := 3; often > limit { // JetStream redelivers a request whose acknowledgement is lost
		t.Errorf("an item was executed %d times for one slice", often)
	}
}

// WantRight checks that each item of a run has its own result.
func (b *Bundle) WantRight(t *testing.T, run workqueue.RunID, items int) {
	t.Helper()
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
		WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'of' = q.item_key`, run), items, "right results")
}

// WantSound waits for a run to complete, and checks everything known from outside.
func (b *Bundle) WantSound(t *testing.T, l *Ledger, run workqueue.RunID, items int) {
	t.Helper()
	b.Want(t, run, 1, items, 0)
	b.WantRight(t, run, items)
	b.wantBounded(t, l, run, items)
	b.Check(t)
}
