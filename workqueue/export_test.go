package workqueue_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/workqueue"
)

// narrow returns a store on the test's database with a single connection.
func (b *bench) narrow() (*workqueue.Store, *pgxpool.Pool) {
	b.Helper()
	config := b.pool.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return workqueue.New(pool), pool
}

// A slow reader is in nobody's way: while it has an item, no connection is taken and no snapshot is held.
func TestExportHoldsNothingWhileItsReaderIsSlow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 10)
	b.finish(run)
	store, pool := b.narrow()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n := 0
	err := store.Export(ctx, run, nil, func(*workqueue.ExportedItem) error {
		n++
		return pool.Ping(ctx) // the only connection
	})
	if err != nil || n != 10 {
		t.Errorf("%d items, %v; want 10", n, err)
	}
}

// What a page holds is bounded by bytes too, and the items stay whole and in order over the cuts.
func TestExportOfLargeResultsComesInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n, size = 40, 1 << 20 // of which a first slice takes 22
	run := b.load(chunked(n), n+3)
	slice := b.one(run)
	reply := whole(slice)
	for i := range reply.Slots {
		reply.Slots[i].Result = bytes.Repeat([]byte{byte('a' + i%26)}, size)
	}
	reply.Slots[3].Result, reply.Slots[3].Err = nil, &workqueue.SlotError{Code: "BAD", Message: "no"}
	reply.Slots[7].Result = bytes.Repeat([]byte("7"), 12<<20) // more than a page by itself
	b.record(reply)

	store, pool := b.narrow()
	before := pool.Stat().AcquireCount()
	next := workqueue.Ordinal(0)
	err := store.Export(t.Context(), run, nil, func(item *workqueue.ExportedItem) error {
		want := []byte(nil)
		if i := int(item.Ordinal); i < len(reply.Slots) {
			want = reply.Slots[i].Result
		}
		if item.Ordinal != next || item.Key != fmt.Sprintf("C%d", next) || !bytes.Equal(item.Result, want) {
			t.Errorf("item %d %s with %d bytes of %.8s; want item %d with %d", item.Ordinal, item.Key, len(item.Result),
				item.Result, next, len(want))
		}
		next++
		return nil
	})
	if pages := pool.Stat().AcquireCount() - before; err != nil || next != n+3 || pages < 4 {
		t.Errorf("%d items in %d reads, %v; want %d items in 4 or more", next, pages, err, n+3)
	}
}

// Of several generations the newest part counts, and none while the item runs again.
func TestExportKnowsGenerations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 4)
	b.record(faulty(b.one(run), workqueue.SlotError{Code: "OLD", Message: "first"}))
	export := func(want ...string) {
		t.Helper()
		var got []string
		err := b.store.Export(t.Context(), run, nil, func(item *workqueue.ExportedItem) error {
			got = append(got, fmt.Sprintf("%s%s%s", item.State, item.Result, item.ErrorCode))
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	export("failedOLD", "failedOLD", "failedOLD", "failedOLD")
	_, err := b.store.Rerun(t.Context(), workqueue.RerunRequest{
		Run: run, Select: workqueue.Selection{Keys: []string{"C1", "C2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	export("failedOLD", "missing", "missing", "failedOLD")
	again := whole(b.one(run))
	again.Slots[1].Result, again.Slots[1].Err = nil, &workqueue.SlotError{Code: "NEW", Message: "second"}
	b.record(again)
	export("failedOLD", `done{"of":1}`, "failedNEW", "failedOLD")
}

// Of a run with more than one step, the first that failed tells, or the last when all are done.
func TestExportOfSeveralSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 4)
	b.finish(run)
	for _, more := range []string{
		`INSERT INTO run_step SELECT run_id, 1, 'second', kind, endpoint, chunk, in_flight, max_attempts, slice_timeout,
			retry_backoff FROM run_step WHERE run_id = $1`,
		`UPDATE work_block SET done = B'1011'::bit(8192), failed = B'0100'::bit(8192) WHERE run_id = $1`,
		`INSERT INTO work_block (run_id, step, block, size, ready, done, failed)
			SELECT run_id, 1, 0, 4, B'0'::bit(8192), B'1000'::bit(8192), B'0010'::bit(8192) FROM work_block WHERE run_id = $1`,
		`INSERT INTO work_part (run_id, slice_id, ordinal, generation, step, error_code, error_message)
			SELECT run_id, slice_id, 1, 2, 0, 'EARLY', 'no' FROM work_part WHERE run_id = $1 AND ordinal = 1`,
		`INSERT INTO work_part (run_id, slice_id, ordinal, generation, step, result)
			SELECT run_id, slice_id, 0, 1, 1, 'last' FROM work_part WHERE run_id = $1 AND step = 0 AND ordinal = 0`,
		`INSERT INTO work_part (run_id, slice_id, ordinal, generation, step, error_code, error_message)
			SELECT run_id, slice_id, 2, 1, 1, 'LATE', 'no' FROM work_part WHERE run_id = $1 AND step = 0 AND ordinal = 2`,
	} {
		b.exec(more, run)
	}
	var got []string
	err := b.store.Export(t.Context(), run, nil, func(item *workqueue.ExportedItem) error {
		got = append(got, fmt.Sprintf("%s %s %s%s", item.State, item.Step, item.Result, item.ErrorCode))
		return nil
	})
	want := []string{"done second last", "failed only EARLY", "failed second LATE", "missing  "}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// Few items of several blocks.
func TestExportOfFewAmongMany(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 2*8192 + 100
	run := b.load(chunked(4096), n)
	for _, s := range b.claim(run, plenty) {
		reply := whole(s)
		reply.Slots[5].Result, reply.Slots[5].Err = nil, &workqueue.SlotError{Code: "BAD", Message: "no"}
		b.record(reply)
	}
	var got []workqueue.Ordinal
	failed := []workqueue.Outcome{workqueue.OutcomeFailed}
	err := b.store.Export(t.Context(), run, failed, func(item *workqueue.ExportedItem) error {
		if item.Key != fmt.Sprintf("C%d", item.Ordinal) || item.ErrorCode != "BAD" || item.Result != nil {
			t.Errorf("the item is %+v", item)
		}
		got = append(got, item.Ordinal)
		return nil
	})
	if err != nil || len(got) != b.tally(run).failed || len(got) < 5 || !slices.IsSorted(got) {
		t.Errorf("got %v, %v; want the %d that failed", got, err, b.tally(run).failed)
	}
}

// TestExportOfManyAtOnce has more slow readers than there are connections.
func TestExportOfManyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 4)
	b.finish(run)
	url := b.pool.Config().ConnString()
	store, release, err := workqueue.Open(t.Context(), url, workqueue.PoolConfig{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	const readers = 6
	reading, ended, enough := make(chan struct{}, readers), make(chan error, readers), make(chan struct{})
	for range readers {
		go func() {
			first := true
			ended <- store.Export(t.Context(), run, nil, func(*workqueue.ExportedItem) error {
				if first {
					reading <- struct{}{}
					<-enough
				}
				first = false
				return nil
			})
		}()
	}
	limit := time.After(20 * time.Second)
	for range readers {
		select {
		case <-reading:
		case <-limit:
			t.Error("slow readers keep the connections from the others")
			close(enough)
			return
		}
	}
	close(enough)
	for range readers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
