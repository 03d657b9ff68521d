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
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Several is more items than one batch of a load.
const Several = 33_000

// WantNothing checks that a failed load has left no rows.
func (b *Bench) WantNothing() {
	b.Helper()
	testenv.Same(b, b.Number(`SELECT (SELECT count(*) FROM batchrun) + (SELECT count(*) FROM work_queue) +
		(SELECT count(*) FROM work_block) + (SELECT count(*) FROM tracker_batch) + (SELECT count(*) FROM run_event)`),
		0, "rows that the load left behind")
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

// Need returns a step that needs others and sees their results.
func Need(name string, needs ...int) workqueue.StepSpec {
	return workqueue.StepSpec{Name: name, Endpoint: Endpoint, StepSettings: workqueue.StepSettings{Chunk: 4, InFlight: 100,
		MaxAttempts: 1, Timeout: time.Minute}, Needs: needs, Inputs: needs}
}

func Optional(s workqueue.StepSpec) workqueue.StepSpec {
	s.Optional = true
	return s
}

func Barrier(s workqueue.StepSpec) workqueue.StepSpec {
	s.Barrier = true
	return s
}

func Planned(steps ...workqueue.StepSpec) start.LoadRequest {
	return start.LoadRequest{Plan: "test", CreatedBy: "test", Steps: steps}
}

func (b *Bench) ClaimStep(run workqueue.RunID, step workqueue.Step, most int) dispatch.Claimed {
	b.Helper()
	req := b.ClaimRequest(run, most)
	req.Step = step
	return testenv.Must(dispatch.New(b.Store).Claim(b.Context(), req))(b)
}

// RecordStep answers everything ready in a step, with errors for the items in fail, and returns their number.
func (b *Bench) RecordStep(run workqueue.RunID, step workqueue.Step, fail ...workqueue.Ordinal) (items int) {
	b.Helper()
	for {
		claimed := b.ClaimStep(run, step, Plenty).Slices
		if len(claimed) == 0 {
			return items
		}
		var answers []settle.Answer
		for _, s := range claimed {
			items += s.Mask.Count()
			answers = append(answers, Except(Whole(s), fail...))
		}
		b.Record(answers...)
	}
}

// Except makes slots of some items permanent errors.
func Except(a settle.Answer, items ...workqueue.Ordinal) settle.Answer {
	for i := range a.Slots {
		for _, o := range items {
			if a.Slots[i].Ordinal == o {
				a.Slots[i].Result, a.Slots[i].Err = nil, &workqueue.SlotError{Code: "bad", Message: "no"}
			}
		}
	}
	return a
}

type StepTally struct{ Ready, Flying, Done, Failed, Skipped, Waiting int }

func (b *Bench) WantAt(run workqueue.RunID, step workqueue.Step, want StepTally) {
	b.Helper()
	var n StepTally
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `
		SELECT sum(bit_count(ready)), sum(bit_count(done)), sum(bit_count(failed)),
		       coalesce(sum(bit_count(skipped)), 0), sum(size),
		       (SELECT coalesce(sum(bit_count(remaining)), 0) FROM work_slice
		        WHERE run_id = $1 AND step = $2 AND state IN ('scheduled', 'claimed', 'sent'))
		FROM work_block WHERE run_id = $1 AND step = $2`, run, step).
		Scan(&n.Ready, &n.Done, &n.Failed, &n.Skipped, &n.Waiting, &n.Flying))
	n.Waiting -= n.Ready + n.Done + n.Failed + n.Skipped + n.Flying
	if n != want {
		b.Errorf("step %d has %+v; want %+v: %s", step, n, want, b.Dump(run))
	}
}

func (b *Bench) WantCounts(run workqueue.RunID, done, failed int64) {
	b.Helper()
	var d, f int64
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `SELECT coalesce(done, -1), coalesce(failed, -1)
		FROM batchrun WHERE id = $1`, run).Scan(&d, &f))
	if d != done || f != failed {
		b.Errorf("the run has %d items done and %d failed; want %d and %d", d, f, done, failed)
	}
}

// The steps of [Collecting].
const (
	Accounts workqueue.Step = iota
	Transactions
	Branches
	Statement
	Posting
)

func StepNames() []string {
	return []string{"accounts", "transactions", "branches", "statement", "letter"}
}

// Collecting returns a run with three steps that fetch, the last of them optional, a step that sees all three
// results, and one that sees the result of that.
func Collecting() start.LoadRequest {
	req := start.LoadRequest{Plan: "statements", CreatedBy: "test"}
	for i, name := range StepNames() {
		st := workqueue.StepSpec{Name: name, Endpoint: name, StepSettings: workqueue.StepSettings{Chunk: 4, InFlight: 100,
			MaxAttempts: 1, Timeout: time.Minute}, Optional: name == "branches"}
		switch workqueue.Step(i) {
		case Statement:
			st.Needs, st.Inputs = []int{0, 1, 2}, []int{0, 1, 2}
		case Posting:
			st.Needs, st.Inputs = []int{3}, []int{3}
		}
		req.Steps = append(req.Steps, st)
	}
	return req
}

// PutPart adds results: $1 run, $2 step, $3 generation, $4 prefix of the results, $5 content type, $6 an error code
// in place of a result, $7 items.
const PutPart = `
INSERT INTO work_result (run_id, slice_id, ordinal, generation, step, result, content_type, error_code, error_message)
SELECT $1, gen_random_uuid(), i, $3, $2, CASE WHEN $6::text IS NULL THEN convert_to($4 || i, 'UTF8') END, $5, $6, ''
FROM unnest($7::integer[]) AS i`
