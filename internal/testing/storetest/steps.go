package storetest

import (
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

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
	if err := b.Pool.QueryRow(b.Context(), `SELECT coalesce(done, -1), coalesce(failed, -1) FROM batchrun WHERE id = $1`,
		run).Scan(&d, &f); err != nil {
		b.Fatal(err)
	}
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
