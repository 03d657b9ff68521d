package retention_test

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Of the last two pieces that come at the same time, one sees both, however they meet. That a result is complete is
// said again when a piece comes again, until it is recorded: a node may have died before it was.
func TestTheLastPieceIsSeen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items = 20
	run := b.Load(storetest.Chunked(1), items)
	met := 0
	for _, s := range b.Claim(run, items) {
		pieces := storetest.InPieces(s, storetest.Ordinals(s)[0], slices.Repeat([]byte("0123456789"), 300), 1000)
		testenv.MustSame(t, b.TakePieces(pieces[0])[0].Standing, export.Kept, "the first piece")
		var standings [2]export.Standing
		var both sync.WaitGroup
		for i := range standings {
			both.Go(func() { standings[i] = b.TakePieces(pieces[1+i])[0].Standing })
		}
		both.Wait()
		if !slices.Contains(standings[:], export.Complete) {
			t.Fatalf("neither of the last two pieces sees that all are here: %v", standings)
		}
		if standings[0] != standings[1] {
			met++
		}
		again := b.TakePieces(pieces...)
		if again[2].Standing != export.Complete || again[0].Standing != export.Kept {
			t.Fatalf("the same pieces again: %+v", again)
		}
		right := testenv.Must(export.New(b.Store).Verify(t.Context(), again[2].ID, pieces[0].SHA256, io.Discard))(t)
		testenv.MustSame(t, right, true, "the result is right")
		b.Record(storetest.LargeAnswer(s, pieces[0], again[2]))
		if late := b.TakePieces(pieces...); late[0].Standing != export.Stale || late[2].Standing != export.Stale {
			t.Fatalf("pieces of what is recorded: %+v", late)
		}
	}
	if met == 0 {
		t.Error("no two pieces came one at a time")
	}
	b.WantTally(run, storetest.Tally{Done: items})
	b.Check()
}

// A result over the step's limit fails its item, in whatever way it came, and what was kept of it is swept.
func TestResultsOverTheirLimitFail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(1)
	req.Steps[0].MaxResult = 2000
	run := b.Load(req, 4)
	claimed := b.Claim(run, 4)
	for i, size := range []int{2000, 2001} {
		a := storetest.Whole(claimed[i])
		a.Slots[0].Result = []byte(`"` + strings.Repeat("0", size-2) + `"`)
		b.Record(a)
		s := claimed[2+i]
		pieces := storetest.InPieces(s, storetest.Ordinals(s)[0], bytes.Repeat([]byte("0"), size), 1001)
		taken := b.TakePieces(pieces...)
		b.Record(storetest.LargeAnswer(s, pieces[0], taken[1]))
	}
	b.WantTally(run, storetest.Tally{Done: 2, Failed: 2})
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_result WHERE error_code = 'result_too_large'
		AND error_message = 'the result has 2001 bytes; max_result of the step is 2000'`), 2, "items failed for size")
	if n, err := export.New(b.Store).Sweep(t.Context(), b.Lead()); n != 1 || err != nil {
		t.Errorf("swept %d results, %v; want the one that was refused", n, err)
	}
	b.Check()
}

// What a service can pile up is bounded by what it says, and goes with its slice.
func TestOpenResultsAreBoundedAndSwept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 10)
	s := b.One(run)
	b.Send(s)
	const each = 64 << 20
	var got []export.Standing
	for _, o := range storetest.Ordinals(s) {
		p := storetest.InPieces(s, o, []byte("a"), 1)[0]
		p.Pieces, p.Bytes = 2, each
		got = append(got, b.TakePieces(p)[0].Standing)
	}
	want := slices.Repeat([]export.Standing{export.Kept}, export.MaxOpen/each)
	testenv.SameList(t, got, append(want, export.TooMuch, export.TooMuch), "standings")
	lease := b.Lead()
	if n, err := export.New(b.Store).Sweep(t.Context(), lease); n != 0 || err != nil {
		t.Errorf("swept %d results of a slice that is live, %v", n, err)
	}
	b.Pass(s.ID)
	if n, err := settle.New(b.Store).Expire(t.Context(), lease, []workqueue.SliceID{s.ID}); n != 1 || err != nil {
		t.Fatalf("expired %d slices, %v", n, err)
	}
	if n, err := export.New(b.Store).Sweep(t.Context(), lease); n != len(want) || err != nil {
		t.Errorf("swept %d results, %v; want %d", n, err, len(want))
	}
	testenv.Same(t, b.largeRows(), 0, "rows are left")
}

// A recorded result is read from any place on, and deleted with its run.
func TestLargeResultsAreReadAndDeletedWithTheirRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(1), 1)
	s := b.One(run)
	data := make([]byte, 10_000)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	pieces := storetest.InPieces(s, 0, data, 3000)
	slices.Reverse(pieces)
	taken := b.TakePieces(pieces...)
	b.Record(storetest.LargeAnswer(s, pieces[0], taken[3]))
	r := testenv.Must(export.New(b.Store).OpenResult(t.Context(), taken[3].ID))(t)
	testenv.MustSame(t, r.Size(), 10_000, "size")
	for _, from := range []int64{0, 2999, 3000, 8999, 9999, 10_000, 1} {
		testenv.Must(r.Seek(from, io.SeekStart))(t)
		testenv.SameList(t, testenv.Must(io.ReadAll(r))(t), data[from:], "from %d", from)
	}
	b.Check()
	b.Exec(`DELETE FROM work_piece WHERE piece = 2`)
	report, err := doctor.New(b.Store).Doctor(t.Context())
	if err != nil || len(report.Violations) != 1 || report.Violations[0].Invariant != doctor.TruthsAgree ||
		!strings.Contains(report.Violations[0].What, "missing pieces") {
		t.Errorf("of a piece that is gone the doctor says %+v, %v", report.Violations, err)
	}
	b.Exec(`UPDATE run_event SET published_at = tranche_now() WHERE run_id = $1`, run)
	b.Exec(`UPDATE batchrun SET finished_at = tranche_now() - interval '1 hour' WHERE id = $1`, run)
	lease := b.Lead()
	if !b.deleteRun(lease, run) {
		t.Fatal("it was not deleted")
	}
	for gone := false; !gone; {
		_, gone, err = retention.New(b.Store).DeletePiece(t.Context(), lease, run, 100)
		testenv.NoError(t, err)
	}
	testenv.Same(t, b.largeRows(), 0, "rows are left")
	_, err = export.New(b.Store).OpenResult(t.Context(), taken[3].ID)
	testenv.Is(t, err, workqueue.ErrNotFound, "what was deleted is opened")
}

func (b *bench) largeRows() (n int) {
	b.Helper()
	testenv.NoError(b, b.Pool.QueryRow(b.Context(),
		`SELECT (SELECT count(*) FROM large_result) + (SELECT count(*) FROM work_piece)`).Scan(&n))
	return n
}
