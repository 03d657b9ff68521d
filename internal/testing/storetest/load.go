package storetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Several is more items than one batch of a load.
const Several = 33_000

// WantNothing checks that a failed load has left no rows.
func (b *Bench) WantNothing() {
	b.Helper()
	n := b.Number(`SELECT (SELECT count(*) FROM batchrun) + (SELECT count(*) FROM work_queue) +
		(SELECT count(*) FROM work_block) + (SELECT count(*) FROM tracker_batch) + (SELECT count(*) FROM run_event)`)
	if n != 0 {
		b.Errorf("the load left %d rows behind", n)
	}
}

func (b *Bench) TryLoad(req start.LoadRequest, next func(*start.LoadItem) error) (start.Loaded, error) {
	req.Session = b.Session
	return start.New(b.Store).Load(b.Context(), req, next)
}

// Until polls until a condition is met, for at most a minute.
func (b *Bench) Until(what string, met func() bool) {
	b.Helper()
	testenv.Until(b, time.Minute, what, met)
}

// OpenRun opens a run with chunks of 1000.
func (b *Bench) OpenRun(change func(*start.OpenRequest)) workqueue.RunID {
	b.Helper()
	req := start.OpenRequest{LoadRequest: Chunked(1000)}
	req.Session = b.Session
	if change != nil {
		change(&req)
	}
	return testenv.Must(start.New(b.Store).OpenRun(b.Context(), req))(b).Run
}

func AddRequest(run workqueue.RunID, key string, items []string) start.AddRequest {
	return start.AddRequest{Run: run, Key: key, Digest: []byte(fmt.Sprint(items)), Actor: "ann",
		Items: func() (func(*start.LoadItem) error, error) { return Keys(items...), nil }}
}

func (b *Bench) Add(run workqueue.RunID, items []string) start.Added {
	b.Helper()
	return testenv.Must(start.New(b.Store).Add(b.Context(), AddRequest(run, "", items)))(b)
}

func (b *Bench) Seal(run workqueue.RunID) start.Sealed {
	b.Helper()
	return testenv.Must(start.New(b.Store).SealRun(b.Context(), start.SealRequest{Run: run, Actor: "ann"}))(b)
}

// Failing answers a slice with errors by f, per ordinal; items without an error are done.
func Failing(s workqueue.Slice, service string, f func(workqueue.Ordinal) *workqueue.SlotError) settle.Answer {
	a := Whole(s)
	a.Service = service
	for i := range a.Slots {
		if e := f(a.Slots[i].Ordinal); e != nil {
			a.Slots[i].Result, a.Slots[i].Err = nil, e
		}
	}
	return a
}

// HoldRows runs a locking query in its own transaction, and returns what ends that.
func (b *Bench) HoldRows(sql string, args ...any) (release func()) {
	b.Helper()
	tx := testenv.Must(b.Pool.Begin(b.Context()))(b)
	release = func() { _ = tx.Rollback(context.Background()) } // may be called twice
	b.Cleanup(release)
	tag, err := tx.Exec(b.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		b.Fatalf("hold: %s, %v", tag, err)
	}
	return release
}

// Waiters counts the statements that wait for a lock.
func (b *Bench) Waiters() int {
	b.Helper()
	return b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock'`)
}

// InPieces cuts a result for an item of a slice into pieces.
func InPieces(s workqueue.Slice, o workqueue.Ordinal, data []byte, size int) (all []export.Piece) {
	claim := export.Claim{Slice: s.ID, Endpoint: s.Endpoint, Ordinal: o, Pieces: (len(data) + size - 1) / size,
		Bytes: int64(len(data)), SHA256: sha256.Sum256(data), ContentType: "application/pdf"}
	for piece := range slices.Chunk(data, size) {
		all = append(all, export.Piece{Claim: claim, Number: len(all) + 1, Data: piece})
	}
	return all
}

func (b *Bench) TakePieces(pieces ...export.Piece) []export.Taken {
	b.Helper()
	return testenv.Must(export.New(b.Store).Take(b.Context(), pieces))(b)
}

func LargeAnswer(s workqueue.Slice, p export.Piece, t export.Taken) settle.Answer {
	return settle.Answer{Slice: s.ID, Endpoint: s.Endpoint, Service: "test", Answered: 1, Slots: []settle.Slot{{
		Ordinal: p.Ordinal, Result: export.Reference(p.Bytes, p.SHA256), ContentType: p.ContentType,
		Large: &settle.Large{ID: t.ID, Bytes: p.Bytes}}}}
}

// Export yields the items of a run with the results of its last step.
func Export(ctx context.Context, db *database.DB, run workqueue.RunID, states []workqueue.Outcome,
	yield func(*export.Item) error,
) error {
	e, err := export.New(db).Open(ctx, export.Request{Run: run, States: states})
	if err != nil {
		return err
	}
	return e.Each(ctx, yield)
}
