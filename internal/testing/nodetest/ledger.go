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

// execution is one item handed to a service.
type execution struct {
	Run        workqueue.RunID
	Ordinal    int
	Generation int
	Slice      workqueue.SliceID
}

// Ledger is what services note of their work, outside the system. Past a mark they wait at a gate, so that a test can
// break something in the middle of a run.
type Ledger struct {
	mark    int
	reached chan struct{}
	Gate    chan struct{}

	mu    sync.Mutex
	total int
	seen  map[execution]int
}

// NewLedger returns a ledger whose services stop after mark items until the gate is opened; 0 means that they do not.
func NewLedger(mark int) *Ledger {
	return &Ledger{mark: mark, reached: make(chan struct{}), Gate: make(chan struct{}), seen: map[execution]int{}}
}

// Handle notes the items of a chunk and answers them.
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

// Take notes items of a request, and waits at the gate if there is one.
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

// Extra returns how many executions there were beyond one for each item, in other slices: JetStream delivers a request
// again whose acknowledgement is lost or late.
func (l *Ledger) Extra(items int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen) - items
}

// Await returns once services have come to the mark.
func (l *Ledger) Await(t *testing.T) {
	t.Helper()
	select {
	case <-l.reached:
	case <-time.After(Stuck):
		t.Fatal("the services did not come to the mark")
	}
}

// counts returns how often each item of a generation was executed.
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

// WantOnce checks that without faults every item was executed exactly once (I5).
func (l *Ledger) WantOnce(t *testing.T, run workqueue.RunID, items int) {
	t.Helper()
	counts := l.counts(run, 1)
	if len(counts) != items {
		t.Errorf("%d items were executed of %d", len(counts), items)
	}
	for item, n := range counts {
		if n != 1 {
			t.Errorf("item %d was executed %d times without a fault", item, n)
			return
		}
	}
}

// wantBounded checks that every item was executed, and never more often than it was issued, as the slices in the
// database tell (I5): an execution belongs to a slice that held its item.
func (b *Bundle) wantBounded(t *testing.T, l *Ledger, run workqueue.RunID, items int) {
	t.Helper()
	if n := len(l.counts(run, 1)); n != items {
		t.Errorf("%d items were executed of %d", n, items)
	}
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
	if stray > 0 {
		t.Errorf("%d executions were of items that no such slice held", stray)
	}
	if limit := 3; often > limit { // JetStream delivers a request again when its acknowledgement is lost
		t.Errorf("an item was executed %d times for one slice", often)
	}
}

// WantRight checks that each item of a run has the result that belongs to it.
func (b *Bundle) WantRight(t *testing.T, run workqueue.RunID, items int) {
	t.Helper()
	var right int
	err := b.Pool.QueryRow(context.Background(), `
		SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
		WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'of' = q.item_key`, run).Scan(&right)
	testenv.NoError(t, err)
	if right != items {
		t.Errorf("%d items of %d have the right result", right, items)
	}
}

// WantSound waits for a run to complete and holds it against everything that is known from outside.
func (b *Bundle) WantSound(t *testing.T, l *Ledger, run workqueue.RunID, items int) {
	t.Helper()
	b.Want(t, run, 1, items, 0)
	b.WantRight(t, run, items)
	b.wantBounded(t, l, run, items)
	b.Check(t)
}
