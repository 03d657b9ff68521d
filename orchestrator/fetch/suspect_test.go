package fetch_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// A suspect has its node for itself until it is recorded. Were the next one to begin before, and end the node, the
// first would be begun and not recorded: it would be taken for what ended it.
func TestASuspectBeginsOnceTheOneBeforeIsRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.suspects(t, "suspected", 2)
	var calls atomic.Int32
	first, goOn, second := make(chan uuid.UUID, 1), make(chan struct{}), make(chan bool, 1)
	compose := fetch.Each(compose)
	cfg := nodetest.Config(t)
	cfg.LocalWorkers = 4
	cfg.Locals = map[string]fetch.Fetcher{"suspected": fetch.Func(
		func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			if calls.Add(1) == 1 {
				first <- req.Slice
				<-goOn
				return compose.Fetch(ctx, req)
			}
			var open int
			err := b.Pool.QueryRow(ctx, `SELECT count(*) FROM work_slice
				WHERE run_id = $1 AND state = 'claimed' AND id <> $2`, run, req.Slice).Scan(&open)
			if err != nil {
				t.Error(err)
			}
			second <- open == 0
			return compose.Fetch(ctx, req)
		})}
	b.Join(t, b.Store, b.NC, cfg)
	slice := <-first
	release := b.holdSlice(t, slice)
	close(goOn)
	b.Await(t, "the first suspect waits to be recorded", `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`)
	// The call has come back. Of three times at which the other one is put off from then on, two may have been decided
	// before; the third was not.
	seen := map[time.Time]bool{}
	nodetest.Until(t, "the other suspect is put off again and again", func() bool {
		select {
		case recorded := <-second:
			t.Fatalf("the other suspect has begun; the first was recorded: %t", recorded)
		default:
		}
		var at time.Time
		err := b.Pool.QueryRow(t.Context(), `SELECT not_before FROM work_slice
			WHERE run_id = $1 AND id <> $2 AND error_code = 'postponed'`, run, slice).Scan(&at)
		seen[at] = err == nil
		return len(seen) > 3 // and the time of those that were not found
	})
	release()
	if !<-second {
		t.Error("the other suspect began before the first was recorded")
	}
	if done, failed := b.Outcome(t, run, 1); done != 2 || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	b.Check(t)
}

// suspects makes a run of n chunks of an item, each of which may kill its node.
func (b *bundle) suspects(t *testing.T, function string, n int) workqueue.RunID {
	t.Helper()
	ctx := t.Context()
	req := local(function)
	req.Steps[0].Chunk, req.Steps[0].Timeout = 1, 10*time.Minute
	run := b.Start(t, req, n)
	session, err := session.New(b.Store).StartSession(ctx, session.NodeInfo{Host: "gone", PID: 1, Version: "test"},
		time.Minute)
	testenv.NoError(t, err)
	wanted := dispatch.ClaimRequest{Session: session, Run: run, MaxSlices: n, MaxBytes: 1 << 20}
	claimed, err := dispatch.New(b.Store).Claim(ctx, wanted)
	if err != nil || len(claimed.Slices) != n {
		t.Fatalf("claimed %d slices, %v", len(claimed.Slices), err)
	}
	if handed, err := settle.New(b.Store).EndSession(ctx, session); err != nil || handed != n {
		t.Fatalf("%d slices were handed back, %v", handed, err)
	}
	tag, err := b.Pool.Exec(ctx, `UPDATE work_slice SET suspect = true WHERE run_id = $1 AND state = 'scheduled'`, run)
	if err != nil || tag.RowsAffected() != int64(n) {
		t.Fatalf("%s, %v", tag, err)
	}
	return run
}

// holdSlice locks a slice that was begun alone, until the function that it returns is called.
func (b *bundle) holdSlice(t *testing.T, slice uuid.UUID) (release func()) {
	t.Helper()
	tx, err := b.Pool.Begin(t.Context())
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // it has ended, unless the test failed
	var alone bool
	err = tx.QueryRow(t.Context(), `SELECT delivered_at IS NOT NULL FROM work_slice WHERE id = $1 FOR UPDATE`, slice).
		Scan(&alone)
	if err != nil || !alone {
		t.Fatalf("slice %s was begun alone: %t, %v", slice, alone, err)
	}
	return func() {
		if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	}
}
