package workqueue_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/results"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// inPieces cuts a result for an item of a slice.
func inPieces(s workqueue.Slice, o workqueue.Ordinal, data []byte, size int) (all []results.Piece) {
	claim := results.Claim{Slice: s.ID, Endpoint: s.Endpoint, Ordinal: o, Pieces: (len(data) + size - 1) / size,
		Bytes: int64(len(data)), SHA256: sha256.Sum256(data), ContentType: "application/pdf"}
	for piece := range slices.Chunk(data, size) {
		all = append(all, results.Piece{Claim: claim, Number: len(all) + 1, Data: piece})
	}
	return all
}

func (b *bench) takePieces(pieces ...results.Piece) []results.Taken {
	b.Helper()
	taken, err := results.New(b.store).Take(b.Context(), pieces)
	if err != nil {
		b.Fatal(err)
	}
	return taken
}

// largeAnswer is the answer that complete pieces are.
func largeAnswer(s workqueue.Slice, p results.Piece, t results.Taken) settle.Answer {
	return settle.Answer{Slice: s.ID, Endpoint: s.Endpoint, Service: "test", Answered: 1, Slots: []settle.Slot{{
		Ordinal: p.Ordinal, Result: results.Reference(p.Bytes, p.SHA256), ContentType: p.ContentType,
		Large: &settle.Large{ID: t.ID, Bytes: p.Bytes}}}}
}

// Of the last two pieces that come at the same time, one sees both, however they meet. That a result is complete is
// said again when a piece comes again, until it is recorded: a node may have died before it was.
func TestTheLastPieceIsSeen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items = 20
	run := b.load(chunked(1), items)
	met := 0
	for _, s := range b.claim(run, items) {
		pieces := inPieces(s, ordinals(s)[0], slices.Repeat([]byte("0123456789"), 300), 1000)
		if got := b.takePieces(pieces[0])[0].Standing; got != results.Kept {
			t.Fatalf("the first piece is %v", got)
		}
		var standings [2]results.Standing
		var both sync.WaitGroup
		for i := range standings {
			both.Go(func() { standings[i] = b.takePieces(pieces[1+i])[0].Standing })
		}
		both.Wait()
		if !slices.Contains(standings[:], results.Complete) {
			t.Fatalf("neither of the last two pieces sees that all are here: %v", standings)
		}
		if standings[0] != standings[1] {
			met++
		}
		again := b.takePieces(pieces...)
		if again[2].Standing != results.Complete || again[0].Standing != results.Kept {
			t.Fatalf("the same pieces again: %+v", again)
		}
		if right, err := results.New(b.store).Verify(t.Context(), again[2].ID, pieces[0].SHA256); err != nil || !right {
			t.Fatalf("the result is not what it should be: %v", err)
		}
		b.record(largeAnswer(s, pieces[0], again[2]))
		if late := b.takePieces(pieces...); late[0].Standing != results.Stale || late[2].Standing != results.Stale {
			t.Fatalf("pieces of what is recorded: %+v", late)
		}
	}
	if met == 0 {
		t.Error("no two pieces came one after the other")
	}
	b.wantTally(run, tally{done: items})
	b.check()
}

// A result over the step's limit fails its item, in whatever way it came, and what was kept of it is swept.
func TestResultsOverTheirLimitFail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := chunked(1)
	req.Steps[0].MaxResult = 2000
	run := b.load(req, 4)
	claimed := b.claim(run, 4)
	for i, size := range []int{2000, 2001} {
		a := whole(claimed[i])
		a.Slots[0].Result = []byte(`"` + strings.Repeat("0", size-2) + `"`)
		b.record(a)
		s := claimed[2+i]
		pieces := inPieces(s, ordinals(s)[0], bytes.Repeat([]byte("0"), size), 1001)
		taken := b.takePieces(pieces...)
		b.record(largeAnswer(s, pieces[0], taken[1]))
	}
	b.wantTally(run, tally{done: 2, failed: 2})
	if n := b.number(`SELECT count(*) FROM work_part WHERE error_code = 'result_too_large'
		AND error_message = 'the result has 2001 bytes; max_result of the step is 2000'`); n != 2 {
		t.Errorf("%d items failed for their size; want 2", n)
	}
	if n, err := results.New(b.store).Sweep(t.Context(), b.lead()); n != 1 || err != nil {
		t.Errorf("swept %d results, %v; want the one that was refused", n, err)
	}
	b.check()
}

// What a service can pile up is bounded by what it says, and goes with its slice.
func TestOpenResultsAreBoundedAndSwept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(10), 10)
	s := b.one(run)
	b.send(s)
	const each = 64 << 20
	var got []results.Standing
	for _, o := range ordinals(s) {
		p := inPieces(s, o, []byte("a"), 1)[0]
		p.Pieces, p.Bytes = 2, each
		got = append(got, b.takePieces(p)[0].Standing)
	}
	want := slices.Repeat([]results.Standing{results.Kept}, results.MaxOpen/each)
	if !slices.Equal(got, append(want, results.TooMuch, results.TooMuch)) {
		t.Errorf("standings %v; want %d kept and two that are too much", got, len(want))
	}
	lease := b.lead()
	if n, err := results.New(b.store).Sweep(t.Context(), lease); n != 0 || err != nil {
		t.Errorf("swept %d results of a slice that is live, %v", n, err)
	}
	b.pass(s.ID)
	if n, err := settle.New(b.store).Expire(t.Context(), lease, []workqueue.SliceID{s.ID}); n != 1 || err != nil {
		t.Fatalf("expired %d slices, %v", n, err)
	}
	if n, err := results.New(b.store).Sweep(t.Context(), lease); n != len(want) || err != nil {
		t.Errorf("swept %d results, %v; want %d", n, err, len(want))
	}
	if n := b.largeRows(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// A recorded result is read from any place on, and deleted with its run.
func TestLargeResultsAreReadAndDeletedWithTheirRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(1), 1)
	s := b.one(run)
	data := make([]byte, 10_000)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	pieces := inPieces(s, 0, data, 3000)
	slices.Reverse(pieces)
	taken := b.takePieces(pieces...)
	b.record(largeAnswer(s, pieces[0], taken[3]))
	r, err := results.New(b.store).Open(t.Context(), taken[3].ID)
	if err != nil || r.Size() != 10_000 {
		t.Fatalf("size %d, %v", r.Size(), err)
	}
	for _, from := range []int64{0, 2999, 3000, 8999, 9999, 10_000, 1} {
		if _, err := r.Seek(from, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(r); err != nil || !slices.Equal(rest, data[from:]) {
			t.Errorf("from %d: %d bytes, %v", from, len(rest), err)
		}
	}
	b.check()
	b.exec(`DELETE FROM work_piece WHERE piece = 2`)
	report, err := doctor.New(b.store).Doctor(t.Context())
	if err != nil || len(report.Violations) != 1 || report.Violations[0].Invariant != doctor.TruthsAgree ||
		!strings.Contains(report.Violations[0].What, "pieces are missing") {
		t.Errorf("of a piece that is gone the doctor says %+v, %v", report.Violations, err)
	}
	b.exec(`UPDATE run_event SET published_at = clock_timestamp() WHERE run_id = $1`, run)
	b.exec(`UPDATE batchrun SET finished_at = clock_timestamp() - interval '1 hour' WHERE id = $1`, run)
	lease := b.lead()
	if !b.deleteRun(lease, run) {
		t.Fatal("it was not deleted")
	}
	for gone := false; !gone; {
		if _, gone, err = retention.New(b.store).DeletePiece(t.Context(), lease, run, 100); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.largeRows(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if _, err := results.New(b.store).Open(t.Context(), taken[3].ID); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("what was deleted is opened: %v", err)
	}
}

func (b *bench) largeRows() (n int) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(),
		`SELECT (SELECT count(*) FROM work_large) + (SELECT count(*) FROM work_piece)`).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}
