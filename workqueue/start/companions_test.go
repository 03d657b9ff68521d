package start

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// together are loads that wait while others are committed: no one commits until the test does.
type together struct {
	*testing.T

	pool *pgxpool.Pool
	db   *database.DB
	ends []chan error
}

func newTogether(t *testing.T) *together {
	t.Helper()
	t.Parallel()
	pool := testenv.Pool(t)
	g := &together{T: t, pool: pool, db: database.New(pool)}
	for i := range 3 { // from now on their paces are known
		testenv.NoError(t, g.load(t.Context(), i, "first"))
	}
	database.Kept[companions](g.db).busy = true
	return g
}

// load makes a run of an endpoint, whose items have the keys.
func (g *together) load(ctx context.Context, endpoint int, keys ...string) error {
	step := workqueue.StepSpec{Name: "work", Endpoint: fmt.Sprintf("endpoint-%d", endpoint)}
	step.Chunk, step.InFlight, step.MaxAttempts = 10, 10, 3
	step.RetryCodes = []string{`a "quoted", \ code`}
	step.Timeout, step.RetryBackoff = time.Minute, time.Second
	_, err := New(g.db).Load(ctx, LoadRequest{Plan: "p", Params: map[string]string{"a": "b"},
		Session: workqueue.NewSessionID(), Steps: []workqueue.StepSpec{step}}, func(item *LoadItem) error {
		if len(keys) == 0 {
			return io.EOF
		}
		*item = LoadItem{Key: keys[0], Payload: []byte(`{}`)}
		keys = keys[1:]
		return nil
	})
	return err
}

// begin starts a load, and returns once it waits.
func (g *together) begin(ctx context.Context, endpoint int, keys ...string) {
	g.Helper()
	end := make(chan error, 1)
	g.ends = append(g.ends, end)
	go func() { end <- g.load(ctx, endpoint, keys...) }()
	for over := time.After(time.Minute); g.waiting() < len(g.ends); {
		select {
		case err := <-end:
			g.Fatalf("a load did not wait: %v", err)
		case <-over:
			g.Fatalf("%d loads wait; want %d", g.waiting(), len(g.ends))
		case <-time.After(time.Millisecond):
		}
	}
}

func (g *together) waiting() int {
	c := database.Kept[companions](g.db)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

func (g *together) commit() {
	database.Kept[companions](g.db).commit(g.Context(), g.db)
}

// wantRuns checks how many runs there are beside the first ones, and in how many transactions they were made.
func (g *together) wantRuns(runs, transactions int) {
	g.Helper()
	var got, made, whole int
	err := g.pool.QueryRow(g.Context(), `
SELECT count(*), count(DISTINCT r.xmin::text), count(*) FILTER (WHERE b.items = r.items
    AND (SELECT count(*) FROM work_queue q WHERE q.run_id = r.id) = r.items
    AND (SELECT bit_count(ready) FROM work_block k WHERE k.run_id = r.id) = r.items
    AND (SELECT bit_count(pending) FROM tracker_group g WHERE g.batch_id = r.id) = r.items
    AND (SELECT retry_codes FROM run_step s WHERE s.run_id = r.id) = ARRAY['a "quoted", \ code']
    AND (SELECT count(*) FROM run_event e WHERE e.run_id = r.id) = 1
    AND (SELECT count(*) FROM audit_log a WHERE a.run_id = r.id AND a.before IS NULL AND a.after ->> 'plan' = 'p') = 1)
FROM (SELECT xmin, * FROM batchrun ORDER BY id OFFSET 3) r
JOIN tracker_batch b ON b.id = r.id`).Scan(&got, &made, &whole)
	testenv.NoError(g, err)
	if got != runs || made != transactions || whole != runs {
		g.Errorf("%d runs, %d of them whole, of %d transactions; want %d of %d", got, whole, made, runs, transactions)
	}
}

func TestSmallLoadsShareATransaction(t *testing.T) {
	g := newTogether(t)
	for i := range 3 {
		g.begin(t.Context(), i, "a", "b", fmt.Sprint("c", i))
	}
	g.commit()
	for i, end := range g.ends {
		testenv.Same(t, <-end, nil, "load %d", i)
	}
	g.wantRuns(3, 1)
}

// A load that PostgreSQL refuses hears why, and takes no other with it.
func TestARefusedLoadLeavesOthersAlone(t *testing.T) {
	g := newTogether(t)
	g.begin(t.Context(), 0, "a", "b")
	g.begin(t.Context(), 1, "a", "b", "a")
	g.begin(t.Context(), 2, "a", "b")
	g.commit()
	testenv.NoError(t, errors.Join(<-g.ends[0], <-g.ends[2]))
	_ = testenv.As[*workqueue.DuplicateKeyError](t, <-g.ends[1], "the load with a key twice")
	g.wantRuns(2, 2)
}

// Who waits no more is not loaded.
func TestAWaitingLoadIsGivenUp(t *testing.T) {
	g := newTogether(t)
	ctx, give := context.WithCancel(t.Context())
	g.begin(ctx, 0, "a")
	g.begin(t.Context(), 1, "a")
	give()
	testenv.Is(t, <-g.ends[0], context.Canceled, "a load that was abandoned ended with")
	g.commit()
	testenv.NoError(t, <-g.ends[1])
	g.wantRuns(1, 1)
}
